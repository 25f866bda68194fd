"""MoCo v3 (Chen et al. 2021): vision transformers contrast two views within the batch, with a momentum encoder."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import backbones
from hirl.data import view_recipes
from hirl.data.views import View
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Output, Plan, Rates, cosine, full_precision, move_towards, warmed_up_cosine
from hirl.methods.parts import ranks
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm


class Network(nn.Module):
    """Backbone and projector: views in, z⁰ of each out."""

    def __init__(self, backbone: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector

    def forward(self, views: list[Tensor]) -> list[Tensor]:
        """V × (B, C, s, s) → V × (B, D). The views share a pass of the backbone, but each is normalised by itself."""
        features = self.backbone(torch.cat(views))
        return [full_precision(self.projector(view)) for view in features.chunk(len(views))]


class MoCoV3(Method):
    """MoCo v3.

    Arguments
        backbone, backbone_args: a timm name of a vision transformer and what timm takes for it.
        dim, hidden: width of z⁰ and of the hidden layers of projector and predictor.
        momentum: share of the momentum encoder that stays at the first step; it rises to 1.
        temperature: of the contrast.
        lr, warmup_epochs, weight_decay: AdamW; `lr` is for a batch of 256 and scales with the batch.
    """

    def __init__(
        self,
        *,
        backbone: str = "vit_base_patch16_224",
        backbone_args: dict[str, Any] | None = None,
        dim: int = 256,
        hidden: int = 4096,
        momentum: float = 0.99,
        temperature: float = 0.2,
        lr: float = 1e-4,
        warmup_epochs: float = 40.0,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.backbone_args = backbone_args
        self.dim = dim
        self.hidden = hidden
        self.momentum = momentum
        self.temperature = temperature
        self.lr = lr
        self.warmup_epochs = warmup_epochs
        self.weight_decay = weight_decay

    # Networks

    def build(self, plan: Plan) -> None:
        self.plan = plan
        self._check(plan)
        backbone = backbones.make_backbone(self.backbone, **{"weight_init": "moco"} | self.encoder_args)
        fix_patches(backbone)
        width = backbones.width(backbone)
        self.query = Network(backbone, mlp(width, self.hidden, self.hidden, self.dim))
        self.predictor = mlp(self.dim, self.hidden, self.dim)
        synchronise_batch_norm(self)
        self.key = deepcopy(self.query).requires_grad_(False)

    def _check(self, plan: Plan) -> None:
        from timm.layers.hybrid_embed import HybridEmbed
        from timm.layers.patch_embed import PatchEmbed
        from timm.models.vision_transformer import VisionTransformer

        check_ranges(self)
        outline = backbones.outline(self.backbone, **self.encoder_args)
        if (
            not isinstance(outline, VisionTransformer)
            or not isinstance(outline.patch_embed, PatchEmbed | HybridEmbed)
            or outline.pos_embed is None
        ):
            raise ValueError(
                f"backbone {self.backbone!r} is no plain vision transformer with positions, but MoCo v3 takes one, "
                "e.g. vit_small_patch16_224."
            )
        if outline.embed_dim % 4:
            raise ValueError(
                f"backbone {self.backbone!r} has tokens of width {outline.embed_dim}, but sines and cosines of rows "
                "and columns need a multiple of 4."
            )
        patch = backbones.patch_size(outline) or 1
        if plan.image_size % patch:
            raise ValueError(f"views of {plan.image_size} pixels do not consist of whole patches of {patch} pixels.")
        if plan.batch_size < 2:
            raise ValueError(f"a batch of {plan.batch_size} image has nothing to contrast with: take 2 or more.")

    @property
    def encoder(self) -> nn.Module:
        return self.query.backbone

    @property
    def encoder_copies(self) -> list[nn.Module]:
        return [self.query.backbone, self.key.backbone]

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        return view_recipes.moco_v3(image_size)

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        outputs = self.query(views)  # 2 × (B, D)
        queries = [full_precision(self.predictor(output)) for output in outputs]
        with torch.no_grad():
            keys = self.key(views)
            everyones = [ranks.joined(key) for key in keys]  # 2 × (ranks · B, D)
        first, first_accuracy = contrast(queries[0], everyones[1], self.temperature)
        second, second_accuracy = contrast(queries[1], everyones[0], self.temperature)
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
        """Moves the momentum encoder.

        The original does it at the start of the next forward pass, from the same parameters and with the momentum of
        that step.
        """
        move_towards(self.key, self.query, cosine(self.momentum, 1.0, (step + 1) / self.plan.steps))

    # Optimiser

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """Everything is decayed, biases and norms as well."""
        return [{"params": [weight for weight in module.parameters() if weight.requires_grad]}]

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=self.peak_lr, weight_decay=self.weight_decay, fused=True)

    @property
    def peak_lr(self) -> float:
        return self.lr * self.plan.batch_size / 256

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=0.0)
        return Rates(lr=lr, weight_decay=self.weight_decay)


def mlp(*widths: int) -> nn.Module:
    """Linear layers without bias, batch norm after each and ReLU between; the last batch norm has no affine part."""
    from lightly.models.modules.heads import ProjectionHead

    pairs = list(pairwise(widths))
    blocks = [(inputs, outputs, nn.BatchNorm1d(outputs), nn.ReLU()) for inputs, outputs in pairs[:-1]]
    head: nn.Module = ProjectionHead([*blocks, (*pairs[-1], nn.BatchNorm1d(widths[-1], affine=False), None)])
    return head


@torch.no_grad()
def fix_patches(backbone: Any) -> None:
    """Positions become sines and cosines of row and column, patches a random projection; neither is trained (Sec. 4).

    They stay where timm keeps them, so that the weights are those of timm's own network. A convolutional stem is
    trained, as it is in the original.
    """
    from timm.layers.patch_embed import PatchEmbed
    from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed

    positions = backbone.pos_embed  # (1, prefix + rows · columns, width); the prefix, [CLS] and the like, has none
    grid = build_sincos2d_pos_embed(list(backbone.patch_embed.grid_size), positions.shape[2], interleave_sin_cos=True)
    positions.zero_()[0, -len(grid) :] = grid
    positions.requires_grad_(False)
    if not isinstance(backbone.patch_embed, PatchEmbed):
        return
    projection = backbone.patch_embed.proj
    nn.init.xavier_uniform_(projection.weight.view(len(projection.weight), -1))  # as the linear layer that it is
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)
    projection.requires_grad_(False)


def contrast(queries: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """2T · the mean of −log p(own key | all keys) by cosine, and the share of queries nearest to their own (Alg. 1).

    queries: (B, D) of this rank; keys: (ranks · B, D) of all in order, both of any length.
    """
    with torch.autocast(queries.device.type, enabled=False):
        logits = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T / temperature  # (B, ranks · B)
        own = ranks.share(torch.arange(len(keys), device=keys.device))
        loss = 2 * temperature * F.cross_entropy(logits, own)
    return loss, (logits.detach().argmax(1) == own).float().mean()
