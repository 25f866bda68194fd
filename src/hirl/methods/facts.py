"""What other packages need to know about a method: its published evaluation, and what training costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class LinearTraining:
    """How a method's publication trains a linear classifier on the frozen encoder. Rates are per 256 images."""

    optimiser: Literal["sgd", "lars"] = "sgd"
    lr: float
    rates: tuple[float, ...] = ()  # of classifiers that are trained side by side, in place of `lr`
    weight_decay: float = 0.0
    batch_size: int
    epochs: int
    milestones: tuple[float, ...] = ()  # in epochs; without any the rate falls by half a cosine to 0
    factor: float = 1.0  # on the rate, at each milestone
    mean_patch: bool = False  # for transformers: concatenate [CLS] with the mean patch token


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The defaults are for methods without published facts.

    linear: the published linear classification, which `linear.setting: official` repeats
    interpolation: how images are resized for KNN and for testing a linear classifier
    cascade_lr: the rate of a Cascade Mask R-CNN on the encoder, at 16 images per step; None for the usual one
    online_assignment: whether the method assigns images to clusters anew at every step
    time: CPU time per image of its small/ recipe, relative to small/moco_v2
    gradient_views: activations kept per image for the backward pass, in those of one view of full size
    """

    linear: LinearTraining | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    cascade_lr: float | None = None
    online_assignment: bool = False
    time: float = 2.0
    gradient_views: int = 2
