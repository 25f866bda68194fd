"""MoCo v3: vision transformers contrast two views within the batch, with a momentum encoder.

Xinlei Chen, Saining Xie and Kaiming He. An Empirical Study of Training Self-Supervised Vision Transformers. ICCV 2021,
arXiv:2104.02057.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks
from hirl.data.views import View, pair
from hirl.encoders import backbones
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Output, Plan, Rates, cosine, full_precision, move_towards, warmed_up_cosine
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.augmentations import SOFT_JITTER, blur_unless_small
from hirl.methods.parts.mlp import MLP
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm


class Network(nn.Module):
    """Backbone and projector: views → z⁰ of each."""

    def __init__(self, backbone: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector

    def forward(self, views: list[Tensor]) -> list[Tensor]:
        """V × (B, C, s, s) → V × (B, D). The views share a pass of the backbone, not of the projector."""
        features = self.backbone(torch.cat(views))
        return [full_precision(self.projector(view)) for view in features.chunk(len(views))]


@dataclass(kw_only=True, eq=False, repr=False)
class MoCoV3(Method):
    """MoCo v3: find the key of the same image among those of the batch, with a vision transformer.

    Args:
        backbone: timm name of a plain vision transformer.
        backbone_args: Further arguments of the backbone for timm, such as {"img_size": 32, "patch_size": 4}.
        dim: Dimension of z⁰, the projector's output.
        hidden: Width of the hidden layers of projector and predictor.
        momentum: Share of the momentum encoder kept at the first step; it rises to 1 along a cosine.
        temperature: Temperature of the contrastive loss.
        lr: Peak learning rate of AdamW per 256 images; 1.6e-3 at batch 4096.
        warmup_epochs: Epochs of linear warm-up from 0.
        weight_decay: Weight decay of all parameters.
    """

    backbone: str = "vit_base_patch16_224"
    backbone_args: dict[str, Any] | None = None
    dim: int = 256
    hidden: int = 4096
    momentum: float = 0.99
    temperature: float = 0.2
    lr: float = 1e-4
    warmup_epochs: float = 40.0
    weight_decay: float = 0.1

    facts = Facts(linear=LinearTraining(lr=3.0, batch_size=1024, epochs=90), cascade_lr=1.6e-4)

    # Networks

    def build(self, plan: Plan) -> None:
        self.plan = plan
        self._check(plan)
        backbone = backbones.make_backbone(self.backbone, **{"weight_init": "moco"} | self.encoder_args)
        fix_patches(backbone)
        width = backbones.width(backbone)
        self.query = Network(backbone, MLP(width, self.hidden, self.hidden, self.dim, output_norm=True))
        self.predictor = MLP(self.dim, self.hidden, self.dim, output_norm=True)
        synchronise_batch_norm(self)
        self.key = deepcopy(self.query).requires_grad_(False)

    def _check(self, plan: Plan) -> None:
        from timm.layers.hybrid_embed import HybridEmbed
        from timm.layers.patch_embed import PatchEmbed
        from timm.models.vision_transformer import VisionTransformer

        check_ranges(self)
        outline = self.backbone_outline
        if (
            not isinstance(outline, VisionTransformer)
            or not isinstance(outline.patch_embed, PatchEmbed | HybridEmbed)
            or outline.pos_embed is None
        ):
            raise ValueError(
                f"backbone {self.backbone!r} is not a plain vision transformer with position embeddings, but MoCo v3 "
                "takes one, e.g. vit_small_patch16_224"
            )
        if outline.embed_dim % 4:
            raise ValueError(
                f"backbone {self.backbone!r} has tokens of width {outline.embed_dim}, but sine-cosine positions of "
                "rows and columns need a multiple of 4"
            )
        self.views(plan.image_size)  # checks the size
        if plan.batch_size < 2:
            raise ValueError(f"batch_size is {plan.batch_size}, but must be at least 2: images are contrasted")

    @property
    def encoder(self) -> nn.Module:
        return self.query.backbone

    @property
    def encoder_copies(self) -> list[nn.Module]:
        return [self.query.backbone, self.key.backbone]

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        """An asymmetric pair: the first view is always blurred, the second rarely, but sometimes solarised."""
        backbones.check_patches(self.backbone_outline, image_size)
        first_blur, second_blur = (blur_unless_small(image_size, probability) for probability in (1.0, 0.1))
        first = View(size=image_size, scale=(0.08, 1.0), jitter=SOFT_JITTER, grey=0.2, blur=first_blur)
        return pair(first, replace(first, blur=second_blur, solarise=0.2))

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        outputs = self.query(views)  # 2 × (B, D)
        queries = [full_precision(self.predictor(output)) for output in outputs]
        with torch.no_grad():
            keys = self.key(views)
            all_keys = [ranks.world().gather(key) for key in keys]  # 2 × (ranks · B, D)
        first, first_accuracy = contrast(queries[0], all_keys[1], self.temperature)
        second, second_accuracy = contrast(queries[1], all_keys[0], self.temperature)
        return Output(
            loss=first + second,
            z0=outputs[0],
            target_z0=keys[1],
            logs={"contrast_accuracy": (first_accuracy + second_accuracy) / 2},
        )

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.key([images])[0]
        return z0

    # Update

    def after_step(self, step: int) -> None:
        """Update the momentum encoder.

        The original does this at the start of the next forward pass, from the same parameters and with the momentum of
        that step.
        """
        move_towards(self.key, self.query, cosine(self.momentum, 1.0, (step + 1) / self.plan.steps))

    # Optimiser

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=self.peak_lr, weight_decay=self.weight_decay, fused=True)

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=0.0)
        return Rates(lr=lr, weight_decay=self.weight_decay)


@torch.no_grad()
def fix_patches(backbone: Any) -> None:
    """Set fixed sine-cosine positions of row and column and a fixed random patch projection (Sec. 4).

    They are stored in timm's own parameters, so that the weights load into timm's network. A convolutional stem is
    trained, as in the original.
    """
    from timm.layers.patch_embed import PatchEmbed
    from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed

    positions = backbone.pos_embed  # (1, prefix + rows · columns, width); prefix tokens such as [CLS] have no position
    grid = build_sincos2d_pos_embed(list(backbone.patch_embed.grid_size), positions.shape[2], interleave_sin_cos=True)
    positions.zero_()[0, -len(grid) :] = grid
    positions.requires_grad_(False)
    if not isinstance(backbone.patch_embed, PatchEmbed):
        return
    projection = backbone.patch_embed.proj
    nn.init.xavier_uniform_(projection.weight.view(len(projection.weight), -1))  # initialised as a linear layer
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)
    projection.requires_grad_(False)


def contrast(queries: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """2T · the mean of −log p(own key | all keys) by cosine, and the share of queries closest to their key (Alg. 1).

    queries: (B, D) of this rank; keys: (ranks · B, D) of all ranks in order, both of any norm.
    """
    with torch.autocast(queries.device.type, enabled=False):
        logits = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T / temperature  # (B, ranks · B)
        own = ranks.world().share(torch.arange(len(keys), device=keys.device))
        loss = 2 * temperature * F.cross_entropy(logits, own)
    return loss, (logits.detach().argmax(1) == own).float().mean()
