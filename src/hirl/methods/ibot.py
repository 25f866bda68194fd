"""iBOT: DINO's self-distillation, plus the prediction of masked patches as the teacher represents them unmasked.

Jinghao Zhou, Chen Wei, Huiyu Wang, Wei Shen, Cihang Xie, Alan Yuille and Tao Kong. iBOT: Image BERT Pre-Training with
Online Tokenizer. ICLR 2022, arXiv:2111.07832.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.data.upload import upload
from hirl.data.views import BlockMask, View
from hirl.data.views.masks import mask_on_cpu
from hirl.encoders import backbones
from hirl.methods.base import Output, Plan, full_precision
from hirl.methods.dino import distillation
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.heads import BottleneckHead, UnitLinear
from hirl.methods.parts.self_distillation import Network, SelfDistillation


class Hidden(NamedTuple):
    """The H hidden patches of n crops of T = h · w patches, in the order of the mask's True entries.

    They are looked up on the CPU, where masks are made: `tensor[mask]` would make it wait for the device at each use.
    """

    mask: Tensor  # (n, h, w) bool
    crop: Tensor  # (H,) the crop of each, in 0..n-1
    patch: Tensor  # (H,) its place in the crop, in 0..T-1
    hidden_per_crop: Tensor  # (H,) how many the crop hides

    @classmethod
    def of(cls, mask: Tensor, on_cpu: Tensor) -> Hidden:
        """From a mask (n, h, w) on the device and its copy on the CPU."""
        flat = on_cpu.flatten(1)
        crop, patch = flat.nonzero(as_tuple=True)
        return cls(mask, *upload(torch.stack((crop, patch, flat.sum(1)[crop])), mask.device).unbind())


class PatchNetwork(Network):
    """A network whose patches share the head of the crops, but for its last layer or altogether."""

    def __init__(self, backbone: nn.Module, head: BottleneckHead) -> None:
        super().__init__(backbone, head)
        self.own_patch_head: BottleneckHead | None = None
        self.own_patch_layer: UnitLinear | None = None

    @property
    def patch_mlp(self) -> nn.Module:
        return self.head.mlp if self.own_patch_head is None else self.own_patch_head.mlp

    @property
    def patch_layer(self) -> UnitLinear:
        if self.own_patch_head is not None:
            return self.own_patch_head.last_layer
        return self.head.last_layer if self.own_patch_layer is None else self.own_patch_layer

    @property
    def last_layers(self) -> list[UnitLinear]:
        return list(dict.fromkeys((self.head.last_layer, self.patch_layer)))


class Student(PatchNetwork):
    """Crops, the global ones with masked patches → z⁰ and logits of the crops, logits of the masked patches."""

    def forward(self, crops: list[Tensor], hidden: Hidden, mask_token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Crops of V views → z⁰ (V · B, D), logits (V · B, K), logits of the hidden patches (H, K)."""
        self.draw_drop_paths(crops[:2])
        pooled, patches = backbones.masked_tokens(self.backbone, torch.cat(crops[:2]), hidden.mask, mask_token)
        z, logits = self.head(self.features(torch.cat([pooled, *self.pooled(crops[2:])])))
        units = F.normalize(self.patch_mlp(patches[hidden.crop, hidden.patch]), dim=1)
        return z, logits, self.patch_layer(units)


class Teacher(PatchNetwork):
    """Unmasked global crops → z⁰ and logits of the crops, logits of the hidden patches and the mean of all patches."""

    def forward(self, crops: list[Tensor], hidden: Hidden) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """→ z⁰ (2 · B, D), logits (2 · B, K), logits of the hidden patches (H, K), mean logits of all patches (K,).

        The logits are linear in the head's unit vectors, so the mean of the 2 · B · T patches' logits is computed from
        their mean unit vector without storing them.
        """
        pooled, patches = backbones.tokens(self.backbone, torch.cat(crops))
        z, logits = self.head(pooled)
        units = F.normalize(full_precision(self.patch_mlp(patches.flatten(0, 1))), dim=1)
        of_crops = units.unflatten(0, patches.shape[:2])  # (2 · B, T, D)
        rows = torch.cat((of_crops[hidden.crop, hidden.patch], units.mean(0, keepdim=True)))
        of_patches = self.patch_layer(rows)
        return z, logits, of_patches[:-1], of_patches[-1]


@dataclass(kw_only=True, eq=False, repr=False)
class IBOT(SelfDistillation):
    """iBOT: DINO with masked patches in the student's global crops.

    Beside the arguments of `SelfDistillation`:

    Args:
        backbone: timm name of a plain vision transformer.
        head_batch_norm: Whether batch norm follows the head's hidden layers: an option of the original, off in its
            recipes. Short runs of small networks learn much sooner with it, provided that patches have their own head.
        shared_head: Whether crops and patches share the head's last layer, as in the paper; false is the original's
            option of separate last layers.
        separate_patch_head: Whether patches have a head of their own, which the original does not offer. With
            `head_batch_norm` the many patches would otherwise set the statistics of the few crops.
    """

    networks = (Student, Teacher)
    centres = ("centre", "patch_centre")
    even_loss = "class_loss"  # the patch loss is added to it, and is 0 where nothing is masked
    centre: Tensor = field(init=False)
    patch_centre: Tensor = field(init=False)

    prototypes: int = 8192
    shared_head: bool = True
    separate_patch_head: bool = False

    facts = Facts(
        # A classifier at each of 45 rates, side by side; the best on the test images is reported.
        linear=LinearTraining(
            lr=0.001,
            rates=tuple(n * 10.0**k for k in range(-4, 1) for n in range(1, 10)),
            batch_size=1024,
            epochs=100,
            mean_patch=True,
        ),
        interpolation="bicubic",
        gradient_views=4,
    )

    # Networks

    def build(self, plan: Plan) -> None:
        super().build(plan)
        # A matrix of one row, as in the original, so it is decayed. It is not part of the encoder, which stays timm's.
        self.mask_token = nn.Parameter(torch.zeros(1, backbones.width(self.student.backbone)))

    def _network(self, kind: type[Network], rate: float) -> Network:
        network = super()._network(kind, rate)
        if self.separate_patch_head:
            network.own_patch_head = self._head(network.backbone)
        elif not self.shared_head:
            network.own_patch_layer = UnitLinear(self.dim, self.prototypes)
        return network

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        """DINO's crops, split at .32 of the image's area; masks hide .3 ± .2 of the patches of half the global ones."""
        backbones.check_maskable(self.backbone_outline)
        patch = backbones.patch_size(self.backbone_outline) or 1
        mask = BlockMask(patch=patch, probability=0.5, ratio=0.3, spread=0.2)
        return self._crops(image_size, split=0.32, mask=mask)

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
        temperatures = {"student_temperature": self.student_temperature, "teacher_temperature": self.temperature(step)}
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
            logs={"class_loss": class_loss.detach(), "patch_loss": patch_loss.detach(), "teacher_entropy": entropy},
        )

    def _hidden(self, crops: list[Tensor], masks: list[Tensor | None]) -> Hidden:
        """The masked patches of the student's 2 · B global crops; none without masks."""
        patch = backbones.patch_size(self.student.backbone) or 1
        on_device, on_cpu = [], []
        for crop, mask in zip(crops, masks, strict=True):
            if mask is None:
                shape = (len(crop), *(side // patch for side in crop.shape[2:]))
                on_device.append(torch.zeros(shape, dtype=torch.bool, device=crop.device))
                on_cpu.append(torch.zeros(shape, dtype=torch.bool))
            else:
                on_device.append(mask)
                on_cpu.append(mask_on_cpu(mask))
        return Hidden.of(torch.cat(on_device), torch.cat(on_cpu))


def patch_distillation(
    student: Tensor,
    teacher: Tensor,
    hidden: Hidden,
    centre: Tensor,
    *,
    student_temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """The cross-entropy of the student's to the teacher's hidden patches, averaged within each crop, then over crops.

    student, teacher: (H, K) logits of the hidden patches. A crop without hidden patches counts as 0, as in the
    original.
    """
    with torch.autocast(student.device.type, enabled=False):
        targets = ((teacher - centre) / teacher_temperature).softmax(-1)
        scaled = student / student_temperature
        entropies = scaled.logsumexp(-1) - (targets * scaled).sum(-1)  # (H,)
        return (entropies / hidden.hidden_per_crop).sum() / len(hidden.mask)
