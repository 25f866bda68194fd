"""DINO: self-distillation without labels, over many crops of each image.

Mathilde Caron, Hugo Touvron, Ishan Misra, Hervé Jégou, Julien Mairal, Piotr Bojanowski and Armand Joulin. Emerging
Properties in Self-Supervised Vision Transformers. ICCV 2021, arXiv:2104.14294.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hirl.data.views import View
from hirl.methods.base import Output, full_precision
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.cross_view import cross_view_entropy
from hirl.methods.parts.self_distillation import Network, SelfDistillation


class CropNetwork(Network):
    """Crops → z⁰ and logits."""

    def forward(self, crops: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Crops of V views, each (B, C, s, s) → (V · B, D), (V · B, K). Crops of equal size share a batch."""
        z0, logits = self.head(self.features(torch.cat(self.pooled(crops))))
        return z0, logits


@dataclass(kw_only=True, eq=False, repr=False)
class DINO(SelfDistillation):
    """DINO: a student predicts the output of its momentum teacher across crops.

    Beside the arguments of `SelfDistillation`:

    Args:
        backbone: timm name of a network without batch norm.
    """

    networks = (CropNetwork, CropNetwork)
    centres = ("centre",)
    centre: Tensor = field(init=False)

    prototypes: int = 65536

    facts = Facts(
        linear=LinearTraining(lr=0.001, batch_size=1024, epochs=100, mean_patch=True),
        interpolation="bicubic",
        gradient_views=4,
    )

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
