"""How a classifier is trained: the official settings of each method and of the paper, as frozen data.

Where a source leaves a setting open, a comment explains the choice. Cosine schedules are per step, not per epoch.
Nothing depends on whether the encoder was trained with HIRL: both arms get the same settings.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

# Fewest steps per epoch: where images are few, the batch shrinks. The paper's CNN settings have 50 steps at 1 % of
# ImageNet. Eight epochs of fine-tuning on 10,000 small images reached 20 % with 19 steps per epoch, 51 % with 78.
STEPS_PER_EPOCH = 50
SMALLEST_BATCH = 16  # below it, batch norm's statistics are noise


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train a linear classifier, together with the encoder or on a frozen one.

    Rates are those after the warm-up, at `batch_size` images per step.
    """

    optimiser: Literal["sgd", "lars", "adamw"] = "sgd"
    classifier_lr: float
    encoder_lr: float = 0.0  # 0: frozen, and in eval mode
    layer_decay: float = 1.0  # factor on the rate per layer away from the classifier
    weight_decay: float = 0.0
    batch_size: int
    epochs: int
    warmup_epochs: float = 0.0
    milestones: tuple[float, ...] = ()  # in epochs; without any the rate falls by half a cosine to 0
    factor: float = 1.0  # on the rate, at each milestone
    mean_patch: bool = False  # for transformers: concatenate [CLS] with the mean patch token

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("classifier_lr", "encoder_lr"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be a number of at least 0")

    def scaled(
        self,
        images: int,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        encoder_lr: float | None = None,
        classifier_lr: float | None = None,
    ) -> TrainingSettings:
        """The settings for a number of training images, with the arguments in place of their own values.

        Warm-up and milestones keep their share of the epochs. All rates, given ones too, refer to the settings' own
        batch and scale with the batch: linearly, or for AdamW, whose steps do not grow with the gradient, by its root.
        """
        batch = fitting_batch(self.batch_size, images) if batch_size is None else batch_size
        if batch > images:
            raise ValueError(
                f"batch_size is {batch}, but there are only {images} training images: choose a smaller one"
            )
        length = self.epochs if epochs is None else epochs
        larger = (batch / self.batch_size) ** (0.5 if self.optimiser == "adamw" else 1.0)
        return replace(
            self,
            batch_size=batch,
            epochs=length,
            warmup_epochs=self.warmup_epochs * length / self.epochs,
            milestones=tuple(milestone * length / self.epochs for milestone in self.milestones),
            encoder_lr=(self.encoder_lr if encoder_lr is None else encoder_lr) * larger,
            classifier_lr=(self.classifier_lr if classifier_lr is None else classifier_lr) * larger,
        )

    def share(self, epoch: float) -> float:
        """The rate after `epoch` epochs, which may be a fraction, as a share of the peak rate."""
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        if self.milestones:
            return self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        passed = (epoch - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-9)
        return (1 + math.cos(math.pi * min(passed, 1.0))) / 2

    @property
    def effective(self) -> dict[str, Any]:
        """The settings that have an effect, as plain data."""
        neutral = {"layer_decay": 1.0, "warmup_epochs": 0.0, "milestones": (), "factor": 1.0, "mean_patch": False}
        return {name: value for name, value in asdict(self).items() if value != neutral.get(name)}


def fitting_batch(batch_size: int, images: int) -> int:
    """The batch size, or where images are few the largest power of two that leaves fifty steps per epoch."""
    if images >= STEPS_PER_EPOCH * batch_size:
        return batch_size
    power = 1 << max(0, (images // STEPS_PER_EPOCH).bit_length() - 1)
    return min(batch_size, images, max(power, SMALLEST_BATCH))


# Linear classification as in each method's publication, which gives rates per 256 images.
LINEAR = {
    "MoCoV2": TrainingSettings(classifier_lr=30.0, batch_size=256, epochs=100, milestones=(60, 80), factor=0.1),
    "SimSiam": TrainingSettings(optimiser="lars", classifier_lr=0.1 * 4096 / 256, batch_size=4096, epochs=90),
    "SwAV": TrainingSettings(classifier_lr=0.3, weight_decay=1e-6, batch_size=256, epochs=100),
    "MoCoV3": TrainingSettings(classifier_lr=3.0 * 1024 / 256, batch_size=1024, epochs=90),
    "DINO": TrainingSettings(classifier_lr=0.001 * 1024 / 256, batch_size=1024, epochs=100, mean_patch=True),
    "IBOT": TrainingSettings(classifier_lr=0.001 * 1024 / 256, batch_size=1024, epochs=100, mean_patch=True),
}

# The paper's fine-tuning and transfer.
FINE_TUNE_CNN = TrainingSettings(
    encoder_lr=0.1, classifier_lr=1.0, batch_size=1024, epochs=20, milestones=(12, 16), factor=0.2
)
FINE_TUNE_VIT = TrainingSettings(
    optimiser="adamw",
    encoder_lr=4e-3,
    classifier_lr=4e-3,
    layer_decay=0.65,
    weight_decay=0.05,
    batch_size=1024,
    epochs=100,
    warmup_epochs=20,  # the paper gives none; this is BEiT's, whose other settings it uses
)

# By the share of labelled images.
SEMI_CNN = {
    0.01: replace(FINE_TUNE_CNN, encoder_lr=0.02, classifier_lr=5.0, batch_size=256),
    0.1: replace(FINE_TUNE_CNN, encoder_lr=0.01, classifier_lr=0.2, batch_size=256),
}
SEMI_VIT = {
    0.01: replace(FINE_TUNE_VIT, encoder_lr=1e-3, classifier_lr=1e-3),
    0.1: replace(FINE_TUNE_VIT, encoder_lr=1e-4, classifier_lr=1e-4),
}


def nearest_share(share: float) -> float:
    """The share with official settings that is nearest on a log scale; of two equally near, the smaller."""
    return min(sorted(SEMI_CNN), key=lambda official: abs(math.log(share / official)))
