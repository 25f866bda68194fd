"""Fine-tuning: the encoder is trained with a linear classifier, by the paper's settings for CNNs and transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hirl import ranks
from hirl.data.sources.image_set import ImageSet
from hirl.encoders.backbones import has_tokens, width
from hirl.evals.base import Evaluation, Needs, Part, Result, Row, Subject
from hirl.evals.labels import accuracies, check_level, labels_of, labels_of_part
from hirl.evals.training.classifier_training import Classifier, Supervision
from hirl.evals.training.regularisation import PLAIN
from hirl.evals.training.training_settings import (
    BASE_WIDTH,
    FINE_TUNE_CNN,
    FINE_TUNE_VIT,
    TrainingSettings,
    fine_tune_vit,
)
from hirl.processes import Precision

Family = Literal["cnn", "vit"]
OPTIONS = ("drop_path", "rand_augment", "erasing", "label_smoothing", "mixup", "cutmix")  # of the regularisation


@dataclass(frozen=True, kw_only=True)
class FineTune(Evaluation):
    """Accuracy after the last epoch of training a copy of the encoder on one label level.

    Args:
        level: The label level to learn, 0 being the finest; coarser levels are derived from the predictions where the
            labels are nested.
        family: Whose settings to train with, "cnn" or "vit"; None for those of the encoder's kind.
        epochs: None for those of the settings (CNNs: 20; ViT-B: 100, narrower transformers 200, ViT-L 50); warm-up and
            milestones keep their share of them.
        batch_size: None for that of the settings, made smaller where it would leave under fifty steps per epoch.
        encoder_lr: Peak rate of the encoder at the settings' own batch, scaled with the batch; None for theirs.
        classifier_lr: The same for the classifier.
        layer_decay: Factor on the rate per layer away from the classifier; None for that of the settings (transformers:
            0.65 for ViT-B, else 0.75).
        regularisation: "paper" for that of the family's published settings: none for CNNs, all of the following for
            transformers; "plain" for random crops and flips alone.
        drop_path: Probability that the last block drops its residual branches; None for the regularisation's own (0.2
            for ViT-B, 0.1 for narrower transformers, 0.4 for ViT-L).
        rand_augment: RandAugment by timm's name of a policy, or none.
        erasing: Probability that a rectangle of an image becomes noise.
        label_smoothing: Share of the target that is spread over all classes.
        mixup: α of mixtures of two images.
        cutmix: α of images with a rectangle of another one; with mixup, half of the mixtures are of either kind.
        precision: Of the forward and backward pass.
        accumulate: Parts that a batch is cut into if it does not fit at once.
    """

    name: ClassVar[str] = "finetune"
    revision: ClassVar[int] = 2  # a transformer's drop path, layer decay and epochs follow its size, as iBOT's do
    level: int = 0
    family: Family | None = None
    epochs: int | None = None
    batch_size: int | None = None
    encoder_lr: float | None = None
    classifier_lr: float | None = None
    layer_decay: float | None = None
    regularisation: Literal["paper", "plain"] = "paper"
    drop_path: float | None = None
    rand_augment: str | None = None
    erasing: float | None = None
    label_smoothing: float | None = None
    mixup: float | None = None
    cutmix: float | None = None
    precision: Precision = "32-true"
    accumulate: int = 1

    @property
    def needs(self) -> Needs:
        return Needs(labels=True, features=False)

    def check(self, parts: Mapping[Part, ImageSet]) -> None:
        check_level(self.level, parts["train"])
        for official in (FINE_TUNE_CNN, FINE_TUNE_VIT):  # which of them is known with the encoder, and its size
            self._apply_arguments(official, len(parts["train"]))

    def run(self, subject: Subject) -> Result:
        official = FINE_TUNE_CNN if self._family(subject) == "cnn" else fine_tune_vit(transformer_width(subject))
        settings = self._settings_for(official, len(subject.train), subject, task=self.name)
        rows = self._fine_tune(subject, subject.train, settings, task=self.name)
        return Result({row["labels"]: row["accuracy"] for row in rows}, rows, settings.effective)

    def _family(self, subject: Subject) -> Family:
        if self.family not in (None, "cnn", "vit"):
            raise ValueError(
                f"{self.name}.family is {self.family!r}, but must be one of 'cnn', 'vit', or None for the encoder's own"
            )
        return self.family or ("vit" if has_tokens(subject.encoder) else "cnn")

    def _settings_for(
        self, official: TrainingSettings, images: int, subject: Subject, *, task: str
    ) -> TrainingSettings:
        """The settings to train with; a message says if the batch is not the official one."""
        settings = self._apply_arguments(official, images)
        if settings.batch_size != official.batch_size:
            subject.message(f"{task}: {smaller_batch(official, settings, images)}")
        return settings

    def _apply_arguments(self, official: TrainingSettings, images: int) -> TrainingSettings:
        """The official settings for a number of training images, with this evaluation's arguments."""
        if self.regularisation not in ("paper", "plain"):
            raise ValueError(f"{self.name}.regularisation is {self.regularisation!r}, but must be 'paper' or 'plain'")
        kept = official.regularisation if self.regularisation == "paper" else PLAIN
        given = {name: getattr(self, name) for name in OPTIONS}
        decay = official.layer_decay if self.layer_decay is None else self.layer_decay
        settings = replace(official, regularisation=kept.changed(**given), layer_decay=decay).for_images(
            images,
            epochs=self.epochs,
            batch_size=self.batch_size,
            encoder_lr=self.encoder_lr,
            classifier_lr=self.classifier_lr,
            pieces=max(1, self.accumulate) * ranks.world().size,
        )
        if settings.encoder_lr == 0:
            raise ValueError("encoder_lr is 0, but the encoder has to learn: choose a rate above 0, or the task linear")
        return settings

    def _fine_tune(self, subject: Subject, images: ImageSet, settings: TrainingSettings, *, task: str) -> list[Row]:
        """The accuracies on the subject's test images after training on `images`."""
        train_labels, test_labels = labels_of(subject)
        check_level(self.level, subject.train)
        learnt = labels_of_part(images)[:, self.level : self.level + 1]
        classifier = Classifier(subject, [len(images.label_names[self.level])], settings)
        if settings.regularisation.drop_path and not classifier.drop_paths:
            subject.message(f"{task}: no drop path, as {subject.name} is not a transformer of timm")
        training = Supervision(subject, settings, task, self.precision, self.accumulate)
        training.learn(classifier, images, learnt)
        predictions, index = training.predict(classifier, subject.test)
        return accuracies(predictions[:, 0], test_labels[index], train_labels, level=self.level, images=subject.test)


class Transfer(FineTune):
    """`FineTune` on images other than the run's (Places205 in the paper), under a name of its own in the results."""

    name: ClassVar[str] = "transfer"

    @property
    def needs(self) -> Needs:
        return replace(super().needs, other_images=True)


def transformer_width(subject: Subject) -> int:
    """The width that selects a transformer's settings; ViT-B's without tokens."""
    return width(subject.encoder) if has_tokens(subject.encoder) else BASE_WIDTH


def smaller_batch(official: TrainingSettings, settings: TrainingSettings, images: int) -> str:
    """Why and how the batch differs from the published one."""
    steps = images // official.batch_size
    few = f"make {steps} step{'s' if steps > 1 else ''} per epoch with" if steps else "are fewer than"
    rates = f"{settings.encoder_lr:.3g}, {settings.classifier_lr:.3g} for the classifier"
    return (
        f"{images:,} images {few} the published batch of {official.batch_size:,}: batch of {settings.batch_size:,}; "
        f"the rates follow ({rates})"
    )
