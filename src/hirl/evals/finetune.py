"""Fine-tuning: the encoder is trained with a linear classifier, by the paper's settings for CNNs and transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hirl.backbones import has_tokens
from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Evaluation, Needs, Result, Row, Subject
from hirl.evals.label_levels import accuracies
from hirl.evals.labels import check_level, labels_of, labels_of_part
from hirl.evals.settings import FINE_TUNE_CNN, FINE_TUNE_VIT, TrainingSettings
from hirl.evals.supervised import Classifier, learn, predict

Family = Literal["cnn", "vit"]


@dataclass(frozen=True, kw_only=True)
class FineTune(Evaluation):
    """Accuracy after the last epoch of training a copy of the encoder on one label level.

    Args:
        level: The label level to learn, 0 being the finest; coarser levels are derived from the predictions where the
            labels are nested.
        family: Whose settings to train with, "cnn" or "vit"; None for those of the encoder's kind.
        epochs: None for those of the settings; warm-up and milestones keep their share of them.
        batch_size: None for that of the settings, made smaller where it would leave under fifty steps per epoch.
        encoder_lr: Peak rate of the encoder at the settings' own batch, scaled with the batch; None for theirs.
        classifier_lr: The same for the classifier.
    """

    name: ClassVar[str] = "finetune"
    level: int = 0
    family: Family | None = None
    epochs: int | None = None
    batch_size: int | None = None
    encoder_lr: float | None = None
    classifier_lr: float | None = None

    @property
    def needs(self) -> Needs:
        return Needs(labels=True, features=False)

    def run(self, subject: Subject) -> Result:
        official = {"cnn": FINE_TUNE_CNN, "vit": FINE_TUNE_VIT}[self._family(subject)]
        settings = self._adapted(official, len(subject.train))
        rows = self._tuned(subject, subject.train, settings, task=self.name)
        return Result({row["labels"]: row["accuracy"] for row in rows}, rows, settings.effective)

    def _family(self, subject: Subject) -> Family:
        if self.family not in (None, "cnn", "vit"):
            raise ValueError(
                f"{self.name}.family is {self.family!r}, but must be one of 'cnn', 'vit', or None for the encoder's own"
            )
        return self.family or ("vit" if has_tokens(subject.encoder) else "cnn")

    def _adapted(self, official: TrainingSettings, images: int) -> TrainingSettings:
        """The official settings for a number of training images, with this evaluation's arguments."""
        settings = official.scaled(
            images,
            epochs=self.epochs,
            batch_size=self.batch_size,
            encoder_lr=self.encoder_lr,
            classifier_lr=self.classifier_lr,
        )
        if settings.encoder_lr == 0:
            raise ValueError("encoder_lr is 0, but the encoder has to learn: choose a rate above 0, or the task linear")
        return settings

    def _tuned(self, subject: Subject, images: ImageSet, settings: TrainingSettings, *, task: str) -> list[Row]:
        """The accuracies on the subject's test images after training on `images`."""
        train_labels, test_labels = labels_of(subject)
        check_level(self.level, subject.train)
        learnt = labels_of_part(images)[:, self.level : self.level + 1]
        classifier = Classifier(subject, [len(images.label_names[self.level])], settings)
        learn(classifier, images, learnt, settings, subject=subject, task=task)
        predictions, index = predict(classifier, subject.test, subject=subject, task=task)
        return accuracies(predictions[:, 0], test_labels[index], train_labels, level=self.level, images=subject.test)
