"""The base of DINO and iBOT: a student, a momentum teacher, centres, multi-crop views, schedules, AdamW."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hirl import ranks
from hirl.data.views import Mask, View, multi_crop
from hirl.encoders import backbones
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Plan, Rates, cosine, move_towards, warmed_up_cosine
from hirl.methods.parts import drop_path
from hirl.methods.parts.augmentations import SOFT_JITTER, blur_unless_small, local_crop_size
from hirl.methods.parts.cross_view import by_size
from hirl.methods.parts.heads import BottleneckHead, UnitLinear
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm


class Network(nn.Module):
    """Backbone and head; the method's subclass defines `forward`."""

    def __init__(self, backbone: nn.Module, head: BottleneckHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.features = nn.Identity()  # a hook point between the two
        self.head = head
        self.drop_paths = tuple(drop_path.replace_drop_paths(backbone))

    @property
    def last_layers(self) -> list[UnitLinear]:
        return [self.head.last_layer]

    def draw_drop_paths(self, crops: list[Tensor]) -> None:
        """Draw the dropped branches of one batch of these crops, view by view."""
        if self.training:
            drop_path.draw(self.drop_paths, len(crops), len(crops[0]), crops[0].device)

    def pooled(self, crops: list[Tensor]) -> list[Tensor]:
        """Crops of V views, each (B, C, s, s) → (views · B, width) per run of equal sizes, which form one batch."""
        features = []
        for group in by_size(crops):
            self.draw_drop_paths(group)
            features.append(self.backbone(torch.cat(group)))
        return features


@dataclass(kw_only=True, eq=False, repr=False)
class SelfDistillation(Method):
    """A student learns from a teacher, its moving average. Subclasses define views and loss.

    The defaults are DINO's, which iBOT adopted but for the number of prototypes.

    Args:
        backbone_args: Further arguments of the backbone for timm, such as {"img_size": 32, "patch_size": 4}.
        dim: Dimension of z⁰, the head's bottleneck.
        hidden: Width of the head's two hidden layers.
        head_batch_norm: Whether batch norm follows the head's hidden layers: an option of the original, off in its
            recipes. Short runs of small networks learn much sooner with it.
        prototypes: Number of outputs of the head.
        local_crops: Local crops per image, besides the two global ones.
        local_size: Side of a local crop in pixels; by default 3/7 of the image's, in whole patches.
        student_temperature: Temperature of the student's softmax.
        teacher_temperature: Temperature of the teacher's softmax, after a linear rise.
        teacher_temperature_start: Temperature of the teacher's softmax in the first epoch.
        teacher_temperature_epochs: Epochs over which the teacher's temperature rises; at most those of the run.
        centre_momentum: Share of a centre kept per step.
        teacher_momentum: Share of the teacher kept at the first step; it rises to 1 along a cosine.
        frozen_epochs: Epochs during which the prototypes stay fixed.
        drop_path: Probability that the student drops the residual branch of its last block; it falls linearly to 0 at
            the first block.
        clip: Largest gradient norm of a single parameter tensor; null for no clipping.
        lr: Peak learning rate of AdamW per 256 images; 3e-3 at batch 1024.
        final_lr: Learning rate at the end of the run, for any batch size.
        warmup_epochs: Epochs of linear warm-up from 0.
        weight_decay: Weight decay at the first step; it changes to `final_weight_decay` along a cosine.
        final_weight_decay: Weight decay at the end of the run.
    """

    networks: ClassVar[tuple[type[Network], type[Network]]]
    """The classes of student and teacher; their weights have the same names."""
    centres: ClassVar[tuple[str, ...]]
    """Names of buffers (K,) that follow the mean of the teacher's outputs."""

    backbone: str = "vit_base_patch16_224"
    backbone_args: dict[str, Any] | None = None
    dim: int = 256
    hidden: int = 2048
    head_batch_norm: bool = False
    prototypes: int
    local_crops: int = 10
    local_size: int | None = None
    student_temperature: float = 0.1
    teacher_temperature: float = 0.07
    teacher_temperature_start: float = 0.04
    teacher_temperature_epochs: int = 50
    centre_momentum: float = 0.9
    teacher_momentum: float = 0.996
    frozen_epochs: float = 3.0
    drop_path: float = 0.1
    clip: float | None = 0.3
    lr: float = 7.5e-4
    final_lr: float = 2e-6
    warmup_epochs: float = 10.0
    weight_decay: float = 0.04
    final_weight_decay: float = 0.4

    remedy = (
        "lower the learning rate, keep the last layer fixed for longer (frozen_epochs), use fewer prototypes, or set "
        "head_batch_norm for a small network"
    )

    # Networks

    def build(self, plan: Plan) -> None:
        self.plan = plan
        self._check(plan)
        student, teacher = self.networks
        self.student = self._network(student, self.drop_path)
        self.teacher = self._network(teacher, 0.0).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())
        for name in self.centres:
            self.register_buffer(name, torch.zeros(self.prototypes))
        # Per centre, sums of the teacher's outputs and how many rows they are of, until `after_step`
        self._collected: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in self.centres}

    def _network(self, kind: type[Network], rate: float) -> Network:
        backbone = backbones.make_backbone(self.backbone, drop_path=rate, **self.encoder_args)
        class_token = getattr(backbone, "cls_token", None)
        if isinstance(class_token, nn.Parameter):
            nn.init.trunc_normal_(class_token, std=0.02)  # as the positions; timm's begins near 0
        return kind(backbone, self._head(backbone))

    def _head(self, backbone: nn.Module) -> BottleneckHead:
        head = BottleneckHead(
            inputs=backbones.width(backbone),
            hidden=self.hidden,
            dim=self.dim,
            outputs=self.prototypes,
            batch_norm=self.head_batch_norm,
        )
        synchronise_batch_norm(head)
        return head

    def _check(self, plan: Plan) -> None:
        check_ranges(self)
        layers = self.backbone_outline.modules()
        if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in layers):
            raise ValueError(
                f"backbone {self.backbone!r} has batch norm, but {type(self).__name__} takes networks without it, "
                "e.g. vit_small_patch16_224"
            )
        self.views(plan.image_size)  # checks the sizes

    @property
    def encoder(self) -> nn.Module:
        return self.teacher.backbone

    @property
    def trained_features(self) -> nn.Module:
        return self.student.features

    @property
    def outputs(self) -> int:
        return self.prototypes

    @property
    def encoder_copies(self) -> list[nn.Module]:
        return [self.student.backbone, self.teacher.backbone]

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.teacher.head.mlp(self.teacher.backbone(images))
        return z0

    # Views

    def _crops(self, image_size: int, *, split: float, mask: Mask | None = None) -> tuple[View, ...]:
        """DINO's crops, which iBOT adopted: an asymmetric global pair and `local_crops` local ones, all bicubic.

        split: the share of the image's area that separates global from local crops; mask: of the global crops.
        """
        outline = self.backbone_outline
        local = self.local_size
        if local is None:
            local = local_crop_size(image_size, backbones.patch_size(outline) or 8)
        for side in (image_size, local):
            backbones.check_patches(outline, side)

        def view(side: int, scale: tuple[float, float], blur: float, solarise: float, mask: Mask | None) -> View:
            return View(
                size=side,
                scale=scale,
                interpolation="bicubic",
                jitter=SOFT_JITTER,
                grey=0.2,
                blur=blur_unless_small(image_size, blur),
                solarise=solarise,
                mask=mask,
            )

        first = view(image_size, (split, 1.0), blur=1.0, solarise=0.0, mask=mask)
        second = view(image_size, (split, 1.0), blur=0.1, solarise=0.2, mask=mask)
        small = view(local, (0.05, split), blur=0.5, solarise=0.0, mask=None)
        return multi_crop((first, second), small, self.local_crops)

    # Schedules

    def temperature(self, step: int) -> float:
        """The teacher's temperature: it rises linearly by epoch, as published, then stays constant."""
        epoch = step // self.plan.steps_per_epoch
        epochs = min(self.teacher_temperature_epochs, self.plan.epochs)
        if epoch >= epochs:
            return self.teacher_temperature
        progress = epoch / max(1, epochs - 1)
        return self.teacher_temperature_start + progress * (self.teacher_temperature - self.teacher_temperature_start)

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(
            self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=self.final_lr
        )
        decay = cosine(self.weight_decay, self.final_weight_decay, step / self.plan.steps)
        return Rates(lr=lr, weight_decay=decay)

    # Update

    def before_update(self, step: int) -> None:
        """Keep the prototypes fixed in the first epochs."""
        if step < self.frozen_epochs * self.plan.steps_per_epoch:
            for layer in self.student.last_layers:
                layer.weight.grad = None

    @torch.no_grad()
    def clip_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Clip the gradient of each parameter tensor separately."""
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        if self.clip is not None and gradients:
            norms = torch.stack(torch._foreach_norm(gradients))
            factors = (self.clip / (norms + 1e-6)).clamp(max=1)
            torch._foreach_mul_(gradients, list(factors.unbind()))

    def _collect(self, centre: str, total: Tensor, count: int) -> None:
        """Add the sum of `count` rows of the teacher's outputs to the next update of a centre."""
        if self.training:
            self._collected[centre].append((total, count))

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Update the teacher, then the centres with the teacher's outputs of this step on all ranks."""
        move_towards(self.teacher, self.student, cosine(self.teacher_momentum, 1.0, step / self.plan.steps))
        for name, sums in self._collected.items():
            if sums:
                total, count = reduce(torch.add, [total for total, _ in sums]), sum(count for _, count in sums)
                mean = ranks.world().mean(total / count)
                self.get_buffer(name).lerp_(mean, 1 - self.centre_momentum)
                sums.clear()

    def skip_step(self) -> None:
        for collected in self._collected.values():
            collected.clear()

    # Optimiser

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """Biases, norms and scales (all vectors) are not decayed."""
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        return [
            {"params": [weight for weight in weights if weight.ndim > 1]},
            {"params": [weight for weight in weights if weight.ndim <= 1], "wd_scale": 0.0},
        ]

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=self.peak_lr, weight_decay=self.weight_decay, fused=True)
