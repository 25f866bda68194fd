"""How a detector is trained: the published settings for COCO, brought to other numbers of images and batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from hirl.evals.detection.detector import Detector
from hirl.evals.detection.pyramid import PyramidBody
from hirl.methods.facts import Facts

COCO_IMAGES = 118_287  # of train2017
WARMUP_SHARE = 10  # the warm-up is at most one in so many steps
WARMUP_START = 0.001  # of the rate
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One way to train a detector. Rates are those of `batch_size` images per step, after the warm-up."""

    optimiser: Literal["sgd", "adamw"]
    lr: float
    weight_decay: float
    layer_decay: float = 1.0  # each layer further from the heads learns this much slower
    drop_path: float = 0.0  # probability that a transformer's last block drops its residual branches
    batch_size: int = 16
    epochs: float
    warmup: int  # steps
    milestones: tuple[float, ...]  # epochs, at each of which the rate falls to a tenth
    steps: int = 0  # of all epochs; 0 until the number of images is known
    short_sides: tuple[int, ...]  # one of which is drawn in training; the largest is that of testing
    long_side: int = 1333
    crops: bool = False  # half of the images are cut as well

    def for_images(self, images: int, **given: Any) -> Schedule:
        """The same number of passes over so many images, with given values in place of its own; None keeps a value.

        Milestones keep their share of the epochs. Rates, the user's too, are those of the published batch and follow
        the batch in proportion; AdamW's, whose steps do not grow with the gradient, by its root.
        """
        chosen: dict[str, Any] = {"batch_size": min(self.batch_size, images)}
        chosen |= {name: value for name, value in given.items() if value is not None}
        if "short_sides" in chosen:
            sides = chosen["short_sides"] = tuple(sorted(chosen["short_sides"]))
            ratio = max(sides, default=0) / max(self.short_sides)
            chosen.setdefault("long_side", math.ceil(self.long_side * ratio))
        asked = replace(self, **chosen)
        asked._check(images)
        steps = max(1, round(asked.epochs * images / asked.batch_size))
        return replace(
            asked,
            lr=asked.lr * (asked.batch_size / self.batch_size) ** (0.5 if self.optimiser == "adamw" else 1.0),
            warmup=min(self.warmup, steps // WARMUP_SHARE),
            milestones=tuple(milestone * asked.epochs / self.epochs for milestone in self.milestones),
            steps=steps,
        )

    def _check(self, images: int) -> None:
        batch, sides, long = self.batch_size, self.short_sides, self.long_side
        if not 1 <= batch <= images:
            raise ValueError(f"batch_size is {batch}, but must be from 1 to {images}, the number of training images")
        if not 0 < self.epochs < math.inf:
            raise ValueError(f"epochs is {self.epochs}, but must be above 0")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}, but must be above 0")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path is {self.drop_path}, but must be at least 0 and below 1")
        if not sides or min(sides) < 1 or long < max(sides):
            raise ValueError(
                f"short_sides is {list(sides)} and long_side {long}, but sides must be at least 1 and none above "
                "long_side"
            )

    def share(self, step: int) -> float:
        """The share of the peak rate at a step."""
        warm = min(1.0, WARMUP_START + (1 - WARMUP_START) * step / self.warmup) if self.warmup else 1.0
        passed = step * self.epochs / self.steps
        return float(warm * 0.1 ** sum(passed >= milestone for milestone in self.milestones))

    @property
    def effective(self) -> dict[str, Any]:
        """All settings with an effect, as plain data."""
        neutral = {"layer_decay": 1.0, "drop_path": 0.0}
        return {name: value for name, value in asdict(self).items() if value != neutral.get(name)}

    def __str__(self) -> str:
        falls = " and ".join(f"{milestone:.4g}" for milestone in self.milestones)
        sides = (
            f"{self.short_sides[0]}–{self.short_sides[-1]}" if len(self.short_sides) > 1 else str(self.short_sides[0])
        )
        decay = f", layer decay {self.layer_decay:g}" if self.layer_decay != 1 else ""
        dropped = f", drop path {self.drop_path:g}" if self.drop_path else ""
        return (
            f"{self.optimiser}, lr {self.lr:.4g}, weight decay {self.weight_decay:g}{decay}{dropped}, "
            f"batch {self.batch_size}, {self.steps:,} steps ({self.epochs:.4g} epochs, ×0.1 after {falls}), "
            f"warm-up {self.warmup} steps, shorter side {sides}, longer side at most {self.long_side}"
        )


# MoCo's configuration: 180,000 steps of 16 images of COCO, a tenth of the rate at 120,000 and 160,000.
C4 = Schedule(
    optimiser="sgd",
    lr=0.02,
    weight_decay=1e-4,
    epochs=180_000 * 16 / COCO_IMAGES,
    warmup=100,
    milestones=(120_000 * 16 / COCO_IMAGES, 160_000 * 16 / COCO_IMAGES),
    short_sides=(640, 672, 704, 736, 768, 800),
)
# iBOT's published run of ViT-B: its file and what its command overrides; warm-up of the mmdetection schedule below it.
CASCADE = Schedule(
    optimiser="adamw",
    lr=1e-4,
    weight_decay=0.05,
    layer_decay=0.75,
    drop_path=0.2,
    epochs=12,
    warmup=500,
    milestones=(8, 11),
    short_sides=(480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800),
    crops=True,
)
BASE_WIDTH = 768  # of ViT-B; narrower transformers are trained as ViT-S, wider ones as ViT-B
CASCADE_SMALL = replace(CASCADE, layer_decay=0.8, drop_path=0.1, batch_size=32)  # iBOT's published run of ViT-S
# The HIRL paper refers to iBOT's configuration but prints these. Its authors' released file has CASCADE's values.
PRINTED: dict[str, Any] = {"layer_decay": 0.65, "milestones": (9, 11), "batch_size": 16}
Source = Literal["ibot", "paper"]


def published(detector: Detector, facts: Facts, source: Source = "ibot") -> Schedule:
    """The settings for a detector on an encoder, given what is known about the method that trained it.

    source: of a cascade's schedule, iBOT's published run or the text of the HIRL paper
    """
    if source not in ("ibot", "paper"):
        raise ValueError(f"detection.source is {source!r}, but must be 'ibot' or 'paper'")
    if not isinstance(detector.body, PyramidBody):
        return C4
    schedule = CASCADE if detector.body.vit.embed_dim >= BASE_WIDTH else CASCADE_SMALL
    changed = PRINTED if source == "paper" else {}
    return replace(schedule, **changed, lr=schedule.lr if facts.cascade_lr is None else facts.cascade_lr)


def param_groups(detector: Detector, schedule: Schedule) -> list[dict[str, Any]]:
    """Groups of `params`, `share` (of the rate) and `weight_decay`: none on norms, and with AdamW none on biases."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for share, decays, parameter in _parameters(detector, schedule):
        decay = schedule.weight_decay if decays else 0.0
        groups.setdefault((share, decay), []).append(parameter)
    return [{"params": params, "share": share, "weight_decay": decay} for (share, decay), params in groups.items()]


def _parameters(detector: Detector, schedule: Schedule) -> Iterator[tuple[float, bool, nn.Parameter]]:
    vit = detector.body.vit if isinstance(detector.body, PyramidBody) else None
    depth = 0 if vit is None else len(vit.blocks)
    norms = {
        id(parameter)
        for module in detector.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm)
        for parameter in module.parameters(recurse=False)
    }
    for name, parameter in detector.named_parameters():
        if not parameter.requires_grad:
            continue
        flat = parameter.ndim == 1 or name.endswith(("pos_embed", "cls_token", "reg_token"))
        decays = not flat if schedule.optimiser == "adamw" else id(parameter) not in norms
        yield schedule.layer_decay ** _below(name, depth), decays, parameter


def _below(name: str, depth: int) -> int:
    """How many layers lie between a parameter and the heads: the last block is 1 below them, the patches depth + 1."""
    if not name.startswith("body.vit."):
        return 0
    parts = name.removeprefix("body.vit.").split(".")
    return depth - int(parts[1]) if parts[0] == "blocks" else depth + 1


def make_optimiser(detector: Detector, schedule: Schedule) -> Any:
    """The schedule's optimiser; each group has its peak rate as `peak`."""
    import torch

    groups = [group | {"peak": schedule.lr * group["share"]} for group in param_groups(detector, schedule)]
    if schedule.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=schedule.lr, betas=(0.9, 0.999))
    return torch.optim.SGD(groups, lr=schedule.lr, momentum=MOMENTUM)
