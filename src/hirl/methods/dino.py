"""DINO (Caron et al. 2021): self-distillation with no labels, over many crops of an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hirl import backbones
from hirl.data import view_recipes
from hirl.data.views import View
from hirl.methods.base import Output, full_precision
from hirl.methods.parts.cross_view import cross_view_entropy
from hirl.methods.parts.self_distillation import Network, SelfDistillation


class CropNetwork(Network):
    """Crops in, z⁰ and logits out."""

    def forward(self, crops: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Crops of V views, each (B, C, s, s), those of equal size in one batch → (V · B, D), (V · B, K)."""
        z0, logits = self.head(torch.cat(self.pooled(crops)))
        return z0, logits


class DINO(SelfDistillation):
    """DINO.

    Arguments
        backbone, backbone_args: a timm name and what timm takes for it; any network without batch norm.
        dim, hidden, prototypes: the head's bottleneck (z⁰), hidden layers and outputs.
        head_batch_norm: batch norm after the head's hidden layers. The originals have it as an option and train
            without; short runs of small networks learn far sooner with it.
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

    networks = (CropNetwork, CropNetwork)
    centres = ("centre",)
    centre: Tensor

    def __init__(
        self,
        *,
        backbone: str = "vit_base_patch16_224",
        backbone_args: dict[str, Any] | None = None,
        dim: int = 256,
        hidden: int = 2048,
        head_batch_norm: bool = False,
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
        self.head_batch_norm = head_batch_norm
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

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        local = self._local_size(image_size, backbones.patch_size(self._outline()) or 8)
        return view_recipes.dino(image_size, local=local, count=self.local_crops)

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        images = len(views[0])
        z0, logits = self.student(views)
        with torch.no_grad():
            target_z0, targets = self.teacher(views[:2])
            targets = full_precision(targets)
            self._collect("centre", targets.sum(0), len(targets))
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


def distillation(
    student: Tensor, teacher: Tensor, centre: Tensor, *, student_temperature: float, teacher_temperature: float
) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy of every student view to every teacher view but itself, and the teacher's entropy.

    student: (V, B, K) logits, the first two views the teacher's; teacher: (2, B, K).
    """
    with torch.autocast(student.device.type, enabled=False):
        sharpened = (teacher - centre) / teacher_temperature
        targets = sharpened.softmax(-1)  # (2, B, K)
        entropy = (sharpened.logsumexp(-1) - (targets * sharpened).sum(-1)).mean()
        loss = cross_view_entropy(student / student_temperature, targets)
    return loss, entropy
