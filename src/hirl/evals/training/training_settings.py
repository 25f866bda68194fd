"""How a classifier is trained: the official settings of the methods and of the paper, as frozen data.

Where a source leaves a setting open, a comment explains the choice. Cosine schedules are per step, not per epoch.
Nothing depends on whether the encoder was trained with HIRL: both arms get the same settings.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from hirl.config.classes import known_classes
from hirl.evals.training.regularisation import PLAIN, PUBLISHED, Regularisation
from hirl.methods.base import Method, cosine
from hirl.methods.facts import LinearTraining

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
    final_share: float = 0.0  # of the peak rate, where a cosine ends
    mean_patch: bool = False  # for transformers: concatenate [CLS] with the mean patch token
    rates: tuple[float, ...] = ()  # of classifiers that are trained side by side, in place of `classifier_lr`
    initial_std: float = 0.01  # of the classifiers' weights
    regularisation: Regularisation = field(default=PLAIN)
    fewest_steps: int = STEPS_PER_EPOCH  # per epoch, below which the batch shrinks

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("classifier_lr", "encoder_lr"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be a number of at least 0")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay is {self.layer_decay}, but must be above 0 and at most 1")

    def for_images(
        self,
        images: int,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        encoder_lr: float | None = None,
        classifier_lr: float | None = None,
        pieces: int = 1,
    ) -> TrainingSettings:
        """The settings for a number of training images, with the arguments in place of their own values.

        Warm-up and milestones keep their share of the epochs. All rates, given ones too, refer to the settings' own
        batch and scale with the batch: linearly, or for AdamW, whose steps do not grow with the gradient, by its root.
        `pieces`: the equal parts that a batch is cut into, over all processes.
        """
        if batch_size is None:
            batch = fitting_batch(self.batch_size, images, self.fewest_steps)
            batch = max(batch // pieces, 1) * pieces
        else:
            batch = batch_size
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
            rates=tuple(rate * larger for rate in self.rates),
        )

    def share(self, epoch: float) -> float:
        """The rate after `epoch` epochs, which may be a fraction, as a share of the peak rate."""
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        if self.milestones:
            return self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        passed = (epoch - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-9)
        return cosine(1.0, self.final_share, passed)

    @property
    def effective(self) -> dict[str, Any]:
        """All settings with an effect, as plain data."""
        neutral = {"layer_decay": 1.0, "warmup_epochs": 0.0, "milestones": (), "factor": 1.0, "mean_patch": False}
        neutral |= {"final_share": 0.0, "rates": (), "initial_std": 0.01}
        shown = {name: value for name, value in asdict(self).items() if value != neutral.get(name, object())}
        del shown["regularisation"], shown["fewest_steps"]
        if self.rates:
            del shown["classifier_lr"]
        return shown | self.regularisation.effective


def fitting_batch(batch_size: int, images: int, fewest_steps: int = STEPS_PER_EPOCH) -> int:
    """The batch size, or where images are few the largest power of two that leaves so many steps per epoch."""
    if images >= fewest_steps * batch_size:
        return batch_size
    power = 1 << max(0, (images // fewest_steps).bit_length() - 1)
    return min(batch_size, images, max(power, SMALLEST_BATCH))


def as_published(linear: LinearTraining) -> TrainingSettings:
    """The settings of a publication, whose rates are per 256 images."""
    scale = linear.batch_size / 256
    same = vars(linear) | {"rates": tuple(rate * scale for rate in linear.rates)}
    return TrainingSettings(classifier_lr=same.pop("lr") * scale, **same)


# Linear classification as in the publication of each method of hirl that has it, by class name.
LINEAR = {name: as_published(kind.facts.linear) for name, kind in known_classes(Method).items() if kind.facts.linear}

# The paper's fine-tuning and transfer.
FINAL_RATE = 1e-6  # where the cosine of transformers ends
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
    # The paper gives none of the following; they are iBOT's for ViT-B. The files that its authors released agree.
    warmup_epochs=20,
    final_share=FINAL_RATE / 4e-3,
    initial_std=2e-5,
    regularisation=PUBLISHED,
)
BASE_WIDTH, LARGE_WIDTH = 768, 1024  # of ViT-B and ViT-L


def drop_path_of(width: int) -> float:
    """The drop path that iBOT fine-tunes a transformer of this width with: ViT-S, and any below ViT-B; ViT-B; ViT-L."""
    return 0.1 if width < BASE_WIDTH else PUBLISHED.drop_path if width < LARGE_WIDTH else 0.4


def fine_tune_vit(width: int) -> TrainingSettings:
    """The paper's settings, which are for ViT-B, with what iBOT changes for ViT-S and ViT-L."""
    kept = replace(FINE_TUNE_VIT, regularisation=PUBLISHED.changed(drop_path=drop_path_of(width)))
    if width < BASE_WIDTH:
        return replace(kept, epochs=200, layer_decay=0.75)
    if width >= LARGE_WIDTH:
        return replace(kept, epochs=50, warmup_epochs=5, layer_decay=0.75)
    return kept


IMAGENET_IMAGES = 1_281_167
# By the share of ImageNet's images that have labels.
SEMI_CNN = {
    0.01: replace(FINE_TUNE_CNN, encoder_lr=0.02, classifier_lr=5.0, batch_size=256),
    0.1: replace(FINE_TUNE_CNN, encoder_lr=0.01, classifier_lr=0.2, batch_size=256),
}
# 1 % of ImageNet, 12,811 images, has 12 steps of the published 1,024 per epoch.
SEMI_VIT = {
    share: replace(FINE_TUNE_VIT, encoder_lr=rate, classifier_lr=rate, final_share=FINAL_RATE / rate, fewest_steps=12)
    for share, rate in ((0.01, 1e-3), (0.1, 1e-4))
}


def semi_vit(share: float, width: int) -> TrainingSettings:
    """The paper's settings for a share of ImageNet, with the drop path of a transformer's width."""
    return replace(SEMI_VIT[share], regularisation=PUBLISHED.changed(drop_path=drop_path_of(width)))


def nearest_share(images: int) -> float:
    """The share of ImageNet with official settings that is nearest, on a log scale, to a number of labelled images."""
    return min(sorted(SEMI_CNN), key=lambda share: abs(math.log(images / (share * IMAGENET_IMAGES))))
