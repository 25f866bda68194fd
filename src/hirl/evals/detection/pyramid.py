"""A plain vision transformer as the body of a detector: four of its blocks become a feature pyramid.

As in iBOT (Zhou et al., "iBOT: Image BERT Pre-Training with Online Tokenizer", 2022, arXiv:2111.07832): the patch
tokens after blocks 4, 6, 8 and 12 are brought to ×4, ×2, ×1 and ×½ of the patches' grid and joined by a feature pyramid
network (Lin et al. 2017). Each image has the positions of its own grid, and what pads a batch is hidden from attention.
torchvision's transformers are read as timm's: the same network under other names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from hirl.encoders.torchvision_networks import vit_to_timm

BLOCKS, DEPTH = (4, 6, 8, 12), 12
SCALES = (4.0, 2.0, 1.0, 0.5)  # of the grid of patches


def pyramid_blocks(depth: int) -> list[int]:
    """Blocks 4, 6, 8 and 12 of 12, counted from 1; of other depths those at the same proportions."""
    return [max(1, (2 * block * depth + DEPTH) // (2 * DEPTH)) for block in BLOCKS]


class PyramidBody(nn.Module):
    """Images → maps at 4, 2, 1 and ½ of the patches' resolution and one more, half the last, for proposals."""

    def __init__(self, vit: nn.Module, channels: int) -> None:
        super().__init__()
        net: Any = vit
        self.vit: Any = vit
        width = int(net.embed_dim)
        self.blocks = pyramid_blocks(len(net.blocks))
        self.rescale = nn.ModuleList(
            (
                nn.Sequential(
                    nn.ConvTranspose2d(width, width, 2, 2),
                    nn.BatchNorm2d(width),
                    nn.GELU(),
                    nn.ConvTranspose2d(width, width, 2, 2),
                ),
                nn.ConvTranspose2d(width, width, 2, 2),
                nn.Identity(),
                nn.MaxPool2d(2, 2),
            )
        )
        self.fpn = FeaturePyramidNetwork([width] * len(BLOCKS), channels, LastLevelMaxPool())

    @property
    def patch(self) -> int:
        return int(self.vit.patch_embed.feat_ratio())

    @property
    def strides(self) -> tuple[float, ...]:
        """Pixels between neighbours of each map, whatever the size of the images."""
        return tuple(self.patch / scale for scale in (*SCALES, SCALES[-1] / 2))

    def forward(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """`sizes`: height and width of each image within the padded batch, whose sides are multiples of two patches."""
        grids = [(-(-height // self.patch), -(-width // self.patch)) for height, width in sizes]
        features = self._features(images, grids)
        maps = OrderedDict(
            (str(level), rescale(feature))
            for level, (rescale, feature) in enumerate(zip(self.rescale, features, strict=True))
        )
        return [one.float() for one in self.fpn(maps).values()]

    def _features(self, images: Tensor, grids: Sequence[tuple[int, int]]) -> list[Tensor]:
        """The patch tokens after each of the four blocks, (B, width, h, w), 0 where the batch is padded."""
        vit = self.vit
        tokens = vit.patch_embed(images)  # (B, h, w, width)
        height, width = tokens.shape[1:3]
        present = torch.zeros(tokens.shape[:3], dtype=torch.bool, device=images.device)
        for place, (rows, columns) in enumerate(grids):
            present[place, :rows, :columns] = True
        tokens = self._with_positions(tokens, grids)
        prefix = tokens.shape[1] - height * width
        mask = None
        if not present.all():
            keys = F.pad(present.flatten(1), (prefix, 0), value=True)
            mask = keys[:, None, None]  # (B, 1, 1, tokens): the same for every head and query
        tokens = vit.norm_pre(vit.pos_drop(tokens))
        found: dict[int, Tensor] = {}
        for number, block in enumerate(vit.blocks, start=1):
            tokens = block(tokens) if mask is None else block(tokens, attn_mask=mask)
            if number in self.blocks:
                patches = tokens[:, prefix:].unflatten(1, (height, width))
                found[number] = (patches * present[..., None]).permute(0, 3, 1, 2)
        return [found[number] for number in self.blocks]

    def _with_positions(self, tokens: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor:
        """(B, prefix + h · w, width): class and register tokens in front, positions of each image's own grid added."""
        from timm.layers.pos_embed import resample_abs_pos_embed

        vit = self.vit
        batch, height, width = tokens.shape[:3]
        prefix = [token.expand(batch, -1, -1) for token in (vit.cls_token, vit.reg_token) if token is not None]
        if vit.pos_embed is None:
            return torch.cat([*prefix, tokens.flatten(1, 2)], dim=1)
        with_prefix = 0 if vit.no_embed_class else int(vit.num_prefix_tokens)
        positions = []
        for rows, columns in grids:
            mine = resample_abs_pos_embed(
                vit.pos_embed, [rows, columns], vit.patch_embed.grid_size, num_prefix_tokens=with_prefix
            )
            grid = mine[0, with_prefix:].unflatten(0, (rows, columns))
            positions.append(F.pad(grid, (0, 0, 0, width - columns, 0, height - rows)))
        patches = (tokens + torch.stack(positions)).flatten(1, 2)
        if with_prefix:
            front = torch.cat(prefix, dim=1) + vit.pos_embed[:, :with_prefix]
            return torch.cat((front, patches), dim=1)
        return torch.cat([*prefix, patches], dim=1)


def is_plain_vit(network: nn.Module) -> bool:
    """Whether its forward pass is that of timm's plain vision transformer, for images of any size."""
    from timm.models.vision_transformer import VisionTransformer

    plain = getattr(type(network), "forward_features", None) is VisionTransformer.forward_features
    return plain and bool(getattr(network, "dynamic_img_size", False))


def is_torchvision_vit(network: nn.Module) -> bool:
    from torchvision.models.vision_transformer import VisionTransformer

    return isinstance(network, VisionTransformer)


def as_timm(network: nn.Module) -> nn.Module:
    """A timm network of the same weights; a stem of convolutions is refused."""
    from timm.models.vision_transformer import VisionTransformer

    vit: Any = network
    if not isinstance(vit.conv_proj, nn.Conv2d):
        raise ValueError("a detector needs a vision transformer that cuts plain patches, but this one has a stem")
    layers = list(vit.encoder.layers)
    made = VisionTransformer(
        img_size=vit.image_size,
        patch_size=vit.patch_size,
        in_chans=vit.conv_proj.in_channels,
        num_classes=0,
        embed_dim=vit.hidden_dim,
        depth=len(layers),
        num_heads=layers[0].num_heads,
        mlp_ratio=vit.mlp_dim / vit.hidden_dim,
        dynamic_img_size=True,
    )
    weights = {name: weight for name, weight in vit.state_dict().items() if not name.startswith("heads.")}
    made.load_state_dict({vit_to_timm(name): weight for name, weight in weights.items()})
    ours: nn.Module = made
    return ours
