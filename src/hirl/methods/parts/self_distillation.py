"""What DINO and iBOT share: a student, its slow copy the teacher, centres, clipped gradients, schedules, AdamW."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from hirl import backbones
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Plan, Rates, cosine, move_towards, warmed_up_cosine
from hirl.methods.parts import drop_path, ranks
from hirl.methods.parts.heads import BottleneckHead
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm


class Network(nn.Module):
    """Backbone and head; what goes in and out is for the method to say."""

    def __init__(self, backbone: nn.Module, head: BottleneckHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.drop_paths = tuple(drop_path.own_drop_paths(backbone))

    @property
    def heads(self) -> list[BottleneckHead]:
        return [self.head]

    def draw_drop_paths(self, crops: list[Tensor]) -> None:
        """For one batch of these crops, view by view."""
        if self.training:
            drop_path.draw(self.drop_paths, len(crops), len(crops[0]), crops[0].device)

    def pooled(self, crops: list[Tensor]) -> list[Tensor]:
        """Crops of views, each (B, C, s, s) → (views · B, width) for each run of equal sizes, which is one batch."""
        features = []
        for _, equal in groupby(crops, key=lambda crop: crop.shape[-1]):
            group = list(equal)
            self.draw_drop_paths(group)
            features.append(self.backbone(torch.cat(group)))
        return features


class Collected:
    """The sum of rows over the forward passes of a step, until the optimiser has moved."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count = 0

    def add(self, total: Tensor, count: int) -> None:
        self.total = total if self.total is None else self.total + total
        self.count += count

    def take(self) -> Tensor | None:
        """The rows' mean over all ranks, if there were any; begins anew."""
        if self.total is None:
            return None
        mean = ranks.mean(self.total / self.count)
        self.total, self.count = None, 0
        return mean


class SelfDistillation(Method):
    """The student learns from the teacher, which follows it slowly. The methods say what is learned: views and loss."""

    networks: tuple[type[Network], type[Network]]
    """Student and teacher; their weights have the same names."""
    centres: tuple[str, ...]
    """Buffers (K,) that follow the mean of what the teacher gives."""

    hidden: int
    head_batch_norm: bool
    prototypes: int
    local_size: int | None
    student_temperature: float
    teacher_temperature: float
    teacher_temperature_start: float
    teacher_temperature_epochs: int
    centre_momentum: float
    teacher_momentum: float
    frozen_epochs: float
    drop_path: float
    clip: float | None
    lr: float
    final_lr: float
    warmup_epochs: float
    weight_decay: float
    final_weight_decay: float

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
        self._collected = {name: Collected() for name in self.centres}

    def _network(self, kind: type[Network], rate: float) -> Network:
        backbone = backbones.make_backbone(self.backbone, drop_path=rate, **self.encoder_args)
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
        outline = backbones.outline(self.backbone, **self.encoder_args)
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in outline.modules()):
            raise ValueError(
                f"backbone {self.backbone!r} has batch norm, but {type(self).__name__} takes networks without it, "
                "e.g. vit_small_patch16_224."
            )
        patch = backbones.patch_size(outline) or 1
        for view in self.views(plan.image_size):
            if view.size % patch:
                raise ValueError(f"views of {view.size} pixels do not consist of whole patches of {patch} pixels.")

    @property
    def encoder(self) -> nn.Module:
        return self.teacher.backbone

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

    def _local_size(self, image_size: int, patch: int) -> int:
        """The side of a local crop: as given, or 3/7 of the image in whole patches."""
        if self.local_size is not None:
            return self.local_size
        return max(1, round(image_size * 3 / 7 / patch)) * patch

    def _outline(self) -> nn.Module:
        """The backbone without weights: views are asked for before `build`."""
        return backbones.outline(self.backbone, **self.backbone_args or {})

    # Schedules

    def temperature(self, step: int) -> float:
        """The teacher's: a straight line by whole epochs, as published, then constant."""
        epoch = step // self.plan.steps_per_epoch
        epochs = min(self.teacher_temperature_epochs, self.plan.epochs)
        if epoch >= epochs:
            return self.teacher_temperature
        share = epoch / max(1, epochs - 1)
        return self.teacher_temperature_start + share * (self.teacher_temperature - self.teacher_temperature_start)

    @property
    def peak_lr(self) -> float:
        return self.lr * self.plan.batch_size / 256

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(
            self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=self.final_lr
        )
        decay = cosine(self.weight_decay, self.final_weight_decay, step / self.plan.steps)
        return Rates(lr=lr, weight_decay=decay)

    # Update

    @torch.no_grad()
    def before_update(self, step: int) -> None:
        """Lets the prototypes keep still in the first epochs and clips every parameter's gradient by itself."""
        if step < self.frozen_epochs * self.plan.steps_per_epoch:
            for head in self.student.heads:
                head.last_layer.weight.grad = None
        gradients = [weight.grad for weight in self.parameters() if weight.grad is not None]
        if self.clip is not None and gradients:
            norms = torch.stack(torch._foreach_norm(gradients))
            factors = (self.clip / (norms + 1e-6)).clamp(max=1)
            torch._foreach_mul_(gradients, list(factors.unbind()))

    def _collect(self, centre: str, total: Tensor, count: int) -> None:
        """Keeps a sum of `count` rows of the teacher's for the centre to move by."""
        if self.training:
            self._collected[centre].add(total, count)

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Moves the teacher, then the centres by what the teacher gave for this step's crops on all ranks."""
        move_towards(self.teacher, self.student, cosine(self.teacher_momentum, 1.0, step / self.plan.steps))
        for name in self.centres:
            mean = self._collected[name].take()
            if mean is not None:
                self.get_buffer(name).lerp_(mean, 1 - self.centre_momentum)

    # Optimiser

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """Biases, norms and scales, which are vectors, are never decayed."""
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        return [
            {"params": [weight for weight in weights if weight.ndim > 1]},
            {"params": [weight for weight in weights if weight.ndim <= 1], "wd_scale": 0.0},
        ]

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=self.peak_lr, weight_decay=self.weight_decay, fused=True)
