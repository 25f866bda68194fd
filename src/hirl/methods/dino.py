"""DINO (Caron et al. 2021): self-distillation with no labels, over many crops of an image."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from hirl import backbones
from hirl.data import view_recipes
from hirl.data.views import View
from hirl.methods import drop_path, ranks
from hirl.methods.base import Method, Output, Plan, Rates, cosine, full_precision, move_towards, warmed_up_cosine
from hirl.methods.heads import BottleneckHead


class Network(nn.Module):
    """Backbone and head: crops in, z⁰ and logits out."""

    def __init__(self, backbone: nn.Module, head: BottleneckHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.drop_paths = tuple(drop_path.own_drop_paths(backbone))

    def forward(self, crops: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Crops of V views, each (B, C, s, s), those of equal size in one batch → (V · B, D), (V · B, K)."""
        features = []
        for _, equal in groupby(crops, key=lambda crop: crop.shape[-1]):
            group = list(equal)
            if self.training:
                drop_path.draw(self.drop_paths, len(group), len(group[0]), group[0].device)
            features.append(self.backbone(torch.cat(group)))
        z0, logits = self.head(torch.cat(features))
        return z0, logits


class DINO(Method):
    """DINO.

    Arguments
        backbone, backbone_args: a timm name and what timm takes for it; any network without batch norm.
        dim, hidden, prototypes: the head's bottleneck (z⁰), hidden layers and outputs.
        local_crops, local_size: small crops beside the two global ones (None: 3/7 of the image, in whole patches).
        student_temperature, teacher_temperature: of the two softmaxes; the teacher's rises in a line from
            `teacher_temperature_start` over `teacher_temperature_epochs`.
        centre_momentum, teacher_momentum: what stays of centre and teacher at a step; the teacher's rises to 1.
        frozen_epochs: epochs in which the prototypes keep still.
        drop_path: share of the student's residual branches dropped at the last block.
        clip: largest gradient norm of each parameter (None: no clipping).
        lr, final_lr, warmup_epochs, weight_decay, final_weight_decay: AdamW; `lr` is for a batch of 256 and scales
            with the batch.
    """

    def __init__(
        self,
        *,
        backbone: str = "vit_base_patch16_224",
        backbone_args: dict[str, Any] | None = None,
        dim: int = 256,
        hidden: int = 2048,
        prototypes: int = 65536,
        local_crops: int = 10,
        local_size: int | None = None,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.07,
        teacher_temperature_start: float = 0.04,
        teacher_temperature_epochs: int = 50,
        centre_momentum: float = 0.9,
        teacher_momentum: float = 0.996,
        frozen_epochs: float = 3.0,
        drop_path: float = 0.1,
        clip: float | None = 0.3,
        lr: float = 7.5e-4,
        final_lr: float = 2e-6,
        warmup_epochs: float = 10.0,
        weight_decay: float = 0.04,
        final_weight_decay: float = 0.4,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.backbone_args = backbone_args
        self.dim = dim
        self.hidden = hidden
        self.prototypes = prototypes
        self.local_crops = local_crops
        self.local_size = local_size
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature
        self.teacher_temperature_start = teacher_temperature_start
        self.teacher_temperature_epochs = teacher_temperature_epochs
        self.centre_momentum = centre_momentum
        self.teacher_momentum = teacher_momentum
        self.frozen_epochs = frozen_epochs
        self.drop_path = drop_path
        self.clip = clip
        self.lr = lr
        self.final_lr = final_lr
        self.warmup_epochs = warmup_epochs
        self.weight_decay = weight_decay
        self.final_weight_decay = final_weight_decay

    # Networks

    def build(self, plan: Plan) -> None:
        self.plan = plan
        self._check(plan)
        self.student = self._network(self.drop_path)
        self.teacher = self._network(0.0).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())
        self.centre: Tensor
        self.register_buffer("centre", torch.zeros(self.prototypes))  # (K,)
        self._logit_sum: Tensor | None = None  # of the teacher over this step's crops, until the optimiser has moved
        self._logit_count = 0

    def _network(self, rate: float) -> Network:
        backbone = backbones.make_backbone(self.backbone, drop_path=rate, **self.encoder_args)
        head = BottleneckHead(
            inputs=backbones.width(backbone), hidden=self.hidden, dim=self.dim, outputs=self.prototypes
        )
        return Network(backbone, head)

    def _check(self, plan: Plan) -> None:
        outline = backbones.outline(self.backbone, **self.encoder_args)
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in outline.modules()):
            raise ValueError(
                f"backbone {self.backbone!r} has batch norm, but DINO takes networks without it, "
                "e.g. vit_small_patch16_224."
            )
        patch = backbones.patch_size(outline) or 1
        for view in self.views(plan.image_size):
            if view.size % patch:
                raise ValueError(f"views of {view.size} pixels do not consist of whole patches of {patch} pixels.")
        for name in ("student_temperature", "teacher_temperature", "teacher_temperature_start"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be above 0.")
        for name in ("centre_momentum", "teacher_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must lie between 0 and 1.")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip is {self.clip}, but must be above 0, or None for no clipping.")

    @property
    def encoder(self) -> nn.Module:
        return self.teacher.backbone

    @property
    def twins(self) -> list[nn.Module]:
        return [self.student.backbone, self.teacher.backbone]

    @property
    def outputs(self) -> int:
        return self.prototypes

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        local = self.local_size
        if local is None:
            patch = backbones.patch_size(backbones.outline(self.backbone, **self.backbone_args or {})) or 8
            local = max(1, round(image_size * 3 / 7 / patch)) * patch
        return view_recipes.dino(image_size, local=local, count=self.local_crops)

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        images = len(views[0])
        z0, logits = self.student(views)
        with torch.no_grad():
            target_z0, targets = self.teacher(views[:2])
            targets = full_precision(targets)
            if self.training:
                total = targets.sum(0)
                self._logit_sum = total if self._logit_sum is None else self._logit_sum + total
                self._logit_count += len(targets)
        loss, entropy = distillation(
            full_precision(logits).unflatten(0, (-1, images)),
            targets.unflatten(0, (2, images)),
            self.centre,
            student_temperature=self.student_temperature,
            teacher_temperature=self.temperature(step),
        )
        return Output(
            loss=loss,
            z0=full_precision(z0[:images]),
            target_z0=full_precision(target_z0[images:]),
            logs={"teacher_entropy": entropy},
        )

    def temperature(self, step: int) -> float:
        """The teacher's: a straight line by whole epochs, as published, then constant."""
        epoch = step // self.plan.steps_per_epoch
        epochs = min(self.teacher_temperature_epochs, self.plan.epochs)
        if epoch >= epochs:
            return self.teacher_temperature
        share = epoch / max(1, epochs - 1)
        return self.teacher_temperature_start + share * (self.teacher_temperature - self.teacher_temperature_start)

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.teacher.head.mlp(self.teacher.backbone(images))
        return z0

    # Update

    @torch.no_grad()
    def before_update(self, step: int) -> None:
        """Lets the prototypes keep still in the first epochs and clips every parameter's gradient by itself."""
        if step < self.frozen_epochs * self.plan.steps_per_epoch:
            self.student.head.last_layer.weight.grad = None
        gradients = [weight.grad for weight in self.student.parameters() if weight.grad is not None]
        if self.clip is not None and gradients:
            norms = torch.stack(torch._foreach_norm(gradients))
            factors = (self.clip / (norms + 1e-6)).clamp(max=1)
            torch._foreach_mul_(gradients, list(factors.unbind()))

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Moves the teacher, then the centre by the teacher's logits for this step's crops on all ranks."""
        move_towards(self.teacher, self.student, cosine(self.teacher_momentum, 1.0, step / self.plan.steps))
        if self._logit_sum is not None:
            mean = ranks.mean(self._logit_sum / self._logit_count)
            self._logit_sum, self._logit_count = None, 0
            self.centre.lerp_(mean, 1 - self.centre_momentum)

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

    @property
    def peak_lr(self) -> float:
        return self.lr * self.plan.batch_size / 256

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(
            self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=self.final_lr
        )
        decay = cosine(self.weight_decay, self.final_weight_decay, step / self.plan.steps)
        return Rates(lr=lr, weight_decay=decay)


def distillation(
    student: Tensor, teacher: Tensor, centre: Tensor, *, student_temperature: float, teacher_temperature: float
) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy of every student view to every teacher view but itself, and the teacher's entropy.

    student: (V, B, K) logits, the first two views the teacher's; teacher: (2, B, K).
    With p = softmax(t) and logits s, −p · log softmax(s) = logsumexp(s) − p · s, summed over the targets of a view at
    once: no log-probabilities of V · B · K are kept.
    """
    with torch.autocast(student.device.type, enabled=False):
        sharpened = (teacher - centre) / teacher_temperature
        targets = sharpened.softmax(-1)  # (2, B, K)
        entropy = (sharpened.logsumexp(-1) - (targets * sharpened).sum(-1)).mean()
        scaled = student / student_temperature
        aligned = torch.einsum("vbk,vbk->b", scaled[:2], targets.flip(0))
        aligned = aligned + torch.einsum("vbk,bk->b", scaled[2:], targets.sum(0))
        totals = scaled.logsumexp(-1)  # (V, B)
        terms = 2 * len(student) - 2
        loss = (totals[:2].sum(0) + 2 * totals[2:].sum(0) - aligned).mean() / terms
    return loss, entropy
