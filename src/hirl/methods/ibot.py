"""iBOT (Zhou et al. 2022): DINO's self-distillation, and of hidden patches what the teacher makes of them when seen."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import backbones
from hirl.data import view_recipes
from hirl.data.views import View
from hirl.methods.base import Output, Plan, full_precision
from hirl.methods.dino import distillation
from hirl.methods.parts.heads import BottleneckHead
from hirl.methods.parts.self_distillation import Network, SelfDistillation


class PatchNetwork(Network):
    """A head for crops, which patches share unless they have one of their own."""

    def __init__(self, backbone: nn.Module, head: BottleneckHead) -> None:
        super().__init__(backbone, head)
        self.own_patch_head: BottleneckHead | None = None

    @property
    def patch_head(self) -> BottleneckHead:
        return self.head if self.own_patch_head is None else self.own_patch_head

    @property
    def heads(self) -> list[BottleneckHead]:
        return [self.head] if self.own_patch_head is None else [self.head, self.own_patch_head]


class Student(PatchNetwork):
    """Crops in, with patches hidden in the global ones; z⁰ and logits of the crops and of the hidden patches out."""

    def forward(self, crops: list[Tensor], hidden: Tensor, mask_token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Crops of V views, hidden (2 · B, h, w) → z⁰ (V · B, D), logits (V · B, K), hidden patches' logits (H, K)."""
        self.draw_drop_paths(crops[:2])
        pooled, patches = backbones.masked_tokens(self.backbone, torch.cat(crops[:2]), hidden, mask_token)
        z, logits = self.head(torch.cat([pooled, *self.pooled(crops[2:])]))
        return z, logits, self.patch_head(patches[hidden.flatten(1)])[1]


class Teacher(PatchNetwork):
    """Whole global crops in; z⁰ and logits of the crops, and logits of some patches and of all on average out."""

    def forward(self, crops: list[Tensor], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """→ z⁰ (2 · B, D), logits (2 · B, K), logits of what the student does not see (H, K), mean of all patches (K,).

        The logits are linear in the head's unit vectors: the mean of all patches' logits, of which there would be
        2 · B · T · K, is that of the mean unit vector.
        """
        pooled, patches = backbones.tokens(self.backbone, torch.cat(crops))
        z, logits = self.head(pooled)
        units = F.normalize(full_precision(self.patch_head.mlp(patches.flatten(0, 1))), dim=1)
        rows = torch.cat((units[hidden.flatten()], units.mean(0, keepdim=True)))
        of_patches = self.patch_head.last_layer(rows)
        return z, logits, of_patches[:-1], of_patches[-1]


class IBOT(SelfDistillation):
    """iBOT.

    Arguments
        backbone, backbone_args: a timm name and what timm takes for it; a vision transformer.
        dim, hidden, prototypes: bottleneck (z⁰), hidden layers and outputs of the head.
        shared_head: crops and patches have one head, as in the paper; False gives patches one of their own.
        head_batch_norm: batch norm after the head's hidden layers. The originals have it as an option and train
            without; short runs of small networks learn far sooner with it, if patches have a head of their own.
        local_crops, local_size: small crops beside the two global ones (None: 3/7 of the image, in whole patches).
        student_temperature, teacher_temperature: of the two softmaxes, for crops and patches; the teacher's rises in
            a line from `teacher_temperature_start` over `teacher_temperature_epochs`.
        centre_momentum, teacher_momentum: what stays of centres and teacher at a step; the teacher's rises to 1.
        frozen_epochs: epochs in which the prototypes keep still.
        drop_path: share of the student's residual branches dropped at the last block.
        clip: largest gradient norm of each parameter (None: no clipping).
        lr, final_lr, warmup_epochs, weight_decay, final_weight_decay: AdamW; `lr` is for a batch of 256 and scales
            with the batch.
    """

    networks = (Student, Teacher)
    centres = ("centre", "patch_centre")
    even_loss = "class_loss"  # that of patches comes on top of it, and falls when nothing is hidden
    centre: Tensor
    patch_centre: Tensor

    def __init__(
        self,
        *,
        backbone: str = "vit_base_patch16_224",
        backbone_args: dict[str, Any] | None = None,
        dim: int = 256,
        hidden: int = 2048,
        head_batch_norm: bool = False,
        shared_head: bool = True,
        prototypes: int = 8192,
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
        self.shared_head = shared_head
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
        super().build(plan)
        # A matrix of one row, as in the original: it decays. It is no part of the encoder, which stays timm's.
        self.mask_token = nn.Parameter(torch.zeros(1, backbones.width(self.student.backbone)))

    def _network(self, kind: type[Network], rate: float) -> Network:
        network = super()._network(kind, rate)
        if not self.shared_head:
            network.own_patch_head = self._head(network.backbone)
        return network

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        outline = self._outline()
        backbones.check_maskable(outline)
        patch = backbones.patch_size(outline) or 1
        local = self._local_size(image_size, patch)
        return view_recipes.ibot(image_size, local=local, count=self.local_crops, patch=patch)

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:
        images = len(views[0])
        hidden = self._hidden(views[:2], masks[:2])
        z0, logits, patch_logits = self.student(views, hidden, self.mask_token)
        with torch.no_grad():
            target_z0, targets, patch_targets, patch_mean = self.teacher(views[:2], hidden)
            targets = full_precision(targets)
            self._collect("centre", targets.sum(0), len(targets))
            self._collect("patch_centre", full_precision(patch_mean) * len(targets), len(targets))
        temperatures = {
            "student_temperature": self.student_temperature,
            "teacher_temperature": self.temperature(step),
        }
        class_loss, entropy = distillation(
            full_precision(logits).unflatten(0, (-1, images)),
            targets.unflatten(0, (2, images)),
            self.centre,
            **temperatures,
        )
        patch_loss = patch_distillation(
            full_precision(patch_logits), full_precision(patch_targets), hidden, self.patch_centre, **temperatures
        )
        return Output(
            loss=class_loss + patch_loss,
            z0=full_precision(z0[:images]),
            target_z0=full_precision(target_z0[images:]),
            logs={
                "class_loss": class_loss.detach(),
                "patch_loss": patch_loss.detach(),
                "teacher_entropy": entropy,
            },
        )

    def _hidden(self, crops: list[Tensor], masks: list[Tensor | None]) -> Tensor:
        """(2 · B, h, w) bool: the patches of the global crops that the student does not see; none without masks."""
        patch = backbones.patch_size(self.student.backbone) or 1
        return torch.cat(
            [
                crop.new_zeros(len(crop), *(side // patch for side in crop.shape[2:]), dtype=torch.bool)
                if mask is None
                else mask
                for crop, mask in zip(crops, masks, strict=True)
            ]
        )


def patch_distillation(
    student: Tensor,
    teacher: Tensor,
    hidden: Tensor,
    centre: Tensor,
    *,
    student_temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """The cross-entropy of the student's to the teacher's hidden patches, averaged within each crop, then over crops.

    student, teacher: (H, K) logits, in the order of what is True in hidden (n, h, w). A crop of which nothing is
    hidden counts as 0, as in the original.
    """
    with torch.autocast(student.device.type, enabled=False):
        targets = ((teacher - centre) / teacher_temperature).softmax(-1)
        scaled = student / student_temperature
        entropies = scaled.logsumexp(-1) - (targets * scaled).sum(-1)  # (H,)
        counts = hidden.sum((1, 2), keepdim=True)  # (n, 1, 1)
        return (entropies / counts.expand_as(hidden)[hidden]).sum() / len(hidden)
