"""Regularisation of supervised training: timm's operations, seeded by image or step.

The published values are those that iBOT (arXiv:2111.07832) fine-tunes ViT-B with: those of DeiT (arXiv:2012.12877) and
BEiT (arXiv:2106.08254), except for a drop path of 0.2, as in the files that the paper's authors released. What is
drawn depends on (seed, epoch, image) or, for mixtures, on (seed, step, place in the batch), whichever process holds the
image.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.data.views import View
from hirl.data.views.rand_augment import check_policy
from hirl.methods.parts.drop_path import DropPath
from hirl.seeds import Stream, mix_seed, seeded_globals

MIXED_TOGETHER = 128  # images that share one mixture: the batch of one of the original's eight GPUs
SMALLEST_CROP = 0.08  # of the image's area, as in every official setting
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Regularisation:
    """By default none but random crops and flips.

    drop_path: probability that the last block's residual branches are dropped, falling linearly to 0 at the first
    rand_augment: a policy of timm; None for no such change
    erasing: probability that a rectangle of an image becomes noise
    label_smoothing: share of the target that is spread over all classes
    mixup, cutmix: α of the Beta distribution of mixtures; 0 for no such mixtures, half of each if both are above 0
    interpolation: of the crops
    """

    drop_path: float = 0.0
    rand_augment: str | None = None
    erasing: float = 0.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        for name in ("drop_path", "erasing", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1")
        for name in ("mixup", "cutmix"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be a number of at least 0")

    def changed(self, **given: Any) -> Regularisation:
        """With the given values; None keeps a value, `none` is no RandAugment."""
        chosen = {name: value for name, value in given.items() if value is not None}
        if chosen.get("rand_augment") == NONE:
            chosen["rand_augment"] = None
        elif "rand_augment" in chosen:
            check_policy(chosen["rand_augment"])  # here, as timm takes seconds to import
        return replace(self, **chosen)

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def view(self, size: int) -> View:
        """The random crop of each image."""
        return View(
            size=size, scale=(SMALLEST_CROP, 1.0), interpolation=self.interpolation, rand_augment=self.rand_augment
        )

    @property
    def effective(self) -> dict[str, Any]:
        """What differs from plain crops and flips."""
        plain = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


PLAIN = Regularisation()
PUBLISHED = Regularisation(
    drop_path=0.2,
    rand_augment="rand-m9-mstd0.5-inc1",
    erasing=0.25,
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
    interpolation="bicubic",
)


def add_drop_paths(network: nn.Module, rate: float) -> list[DropPath]:
    """Let the blocks of a timm transformer drop their residual branches; none for other networks."""
    blocks = list(getattr(network, "blocks", ()))
    paths = []
    for place, block in enumerate(blocks if rate else ()):
        for name in ("drop_path1", "drop_path2"):
            if hasattr(block, name):
                paths.append(DropPath(rate * place / max(1, len(blocks) - 1)))
                setattr(block, name, paths[-1])
    return paths


def erase(images: Tensor, probability: float, *, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Random erasing, in place: a rectangle of some normalised images (B, C, H, W) becomes noise, pixel by pixel."""
    from timm.data.random_erasing import RandomErasing

    if probability:
        eraser = RandomErasing(probability, mode="pixel", device="cpu")
        with seeded_globals(0):  # kept and restored once: for each image that took five times as long as the erasing
            for image, place in zip(images, index.tolist(), strict=True):
                own = mix_seed(seed, Stream.ERASING, epoch, place)
                random.seed(own)  # the two generators that timm's eraser draws from
                torch.default_generator.manual_seed(own)
                eraser(image)
    return images


def mix_images(
    images: Tensor, labels: Tensor, classes: int, settings: Regularisation, *, seed: int, step: int, first: int
) -> tuple[Tensor, Tensor]:
    """Mixup or cutmix of neighbouring rows, in place, and the targets (B, classes) of the mixtures.

    images (B, C, H, W), labels (B,); `first` is the place of the first row in the batch of all processes and parts.
    Rows are paired with their neighbour, so that a process finds its partners among its own rows; an unpaired last row
    stays as it is.
    """
    from timm.data.mixup import Mixup

    mixtures = Mixup(
        mixup_alpha=settings.mixup,
        cutmix_alpha=settings.cutmix,
        label_smoothing=settings.label_smoothing,
        num_classes=classes,
    )
    targets = smoothed(labels, classes, settings.label_smoothing)
    start = 0
    while start < len(images) - 1:
        group, passed = divmod(first + start, MIXED_TOGETHER)
        count = min(MIXED_TOGETHER - passed, len(images) - start) // 2 * 2
        if count == 0:  # a row whose partner is elsewhere
            start += 1
            continue
        rows = _facing(count).to(images.device) + start
        with seeded_globals(mix_seed(seed, Stream.MIXTURES, step, group)):
            images[rows], targets[rows] = mixtures(images[rows], labels[rows])
        start += count
    return images, targets


def _facing(count: int) -> Tensor:
    """An order in which rows 0 and 1, 2 and 3 … face each other when it is reversed, as timm pairs them."""
    even = torch.arange(0, count, 2)
    return torch.cat([even, (even + 1).flip(0)])


def smoothed(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """(B, classes): targets that sum to 1."""
    return F.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes
