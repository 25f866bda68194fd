"""DINO: self-distillation without labels, over many crops of each image.

Mathilde Caron, Hugo Touvron, Ishan Misra, Hervé Jégou, Julien Mairal, Piotr Bojanowski and Armand Joulin. Emerging
Properties in Self-Supervised Vision Transformers. ICCV 2021, arXiv:2104.14294.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hirl.data.views import View
from hirl.methods.base import Output, full_precision
from hirl.methods.parts.cross_view import cross_view_entropy
from hirl.methods.parts.self_distillation import Network, SelfDistillation


class CropNetwork(Network):
    """Crops → z⁰ and logits."""

    def forward(self, crops: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Crops of V views, each (B, C, s, s) → (V · B, D), (V · B, K). Crops of equal size share a batch."""
        z0, logits = self.head(torch.cat(self.pooled(crops)))
        return z0, logits


class DINO(SelfDistillation):
    """DINO: a student predicts the output of its momentum teacher across crops.

    Args:
        backbone: timm name of a network without batch norm.
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
        centre_momentum: Share of the centre kept per step.
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
        """Two global crops of .25 to 1 of the image's area, and local crops of .05 to .25."""
        return self._crops(image_size, split=0.25)

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
    """The mean cross-entropy of every student view to every teacher view except itself, and the teacher's entropy.

    student: (V, B, K) logits, with the teacher's two views first; teacher: (2, B, K) logits.
    """
    with torch.autocast(student.device.type, enabled=False):
        sharpened = (teacher - centre) / teacher_temperature
        targets = sharpened.softmax(-1)  # (2, B, K)
        entropy = (sharpened.logsumexp(-1) - (targets * sharpened).sum(-1)).mean()
        loss = cross_view_entropy(student / student_temperature, targets)
    return loss, entropy
