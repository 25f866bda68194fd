"""Fine-tuning: the encoder learns along with a linear classifier, by the paper's recipes for CNNs and transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hirl.backbones import has_tokens
from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Evaluation, Result, Row, Subject, labels_of, labels_of_part
from hirl.evals.label_levels import accuracies, check_level
from hirl.evals.settings import FINE_TUNE_CNN, FINE_TUNE_VIT, Recipe
from hirl.evals.supervised import Classifier, answers, learn

Kind = Literal["cnn", "vit"]


@dataclass(frozen=True, kw_only=True)
class FineTune(Evaluation):
    """Accuracy after the last epoch of learning one label level, on a copy of the encoder.

    Args:
        level: The label level learnt, 0 being the finest; coarser ones are read off the answers where they are nested.
        recipe: "cnn" or "vit"; None for the one that suits the encoder.
        epochs: None for the recipe's; warm-up and milestones keep their share of them.
        batch_size: None for the recipe's, made smaller where it would leave under fifty steps an epoch.
        encoder_lr: Peak rate of the encoder at the recipe's own batch, scaled with the batch; None for the recipe's.
        classifier_lr: The same of the classifier.
    """

    name: ClassVar[str] = "finetune"
    level: int = 0
    recipe: Kind | None = None
    epochs: int | None = None
    batch_size: int | None = None
    encoder_lr: float | None = None
    classifier_lr: float | None = None

    def run(self, subject: Subject) -> Result:
        official = {"cnn": FINE_TUNE_CNN, "vit": FINE_TUNE_VIT}[self._kind(subject)]
        recipe = self._adapted(official, len(subject.train))
        rows = self._tuned(subject, subject.train, recipe, what=self.name)
        return Result({row["labels"]: row["accuracy"] for row in rows}, rows, recipe.settled)

    def _kind(self, subject: Subject) -> Kind:
        """Whose recipe the encoder is trained by."""
        if self.recipe not in (None, "cnn", "vit"):
            raise ValueError(
                f"{self.name}.recipe is {self.recipe!r}, but must be one of 'cnn', 'vit', or None to suit the encoder"
            )
        return self.recipe or ("vit" if has_tokens(subject.encoder) else "cnn")

    def _adapted(self, official: Recipe, images: int) -> Recipe:
        """The official recipe for so many training images, with what the arguments would have otherwise."""
        recipe = official.scaled(
            images,
            epochs=self.epochs,
            batch_size=self.batch_size,
            encoder_lr=self.encoder_lr,
            classifier_lr=self.classifier_lr,
        )
        if recipe.encoder_lr == 0:
            raise ValueError("encoder_lr is 0, but the encoder has to learn: choose a rate above 0, or the task linear")
        return recipe

    def _tuned(self, subject: Subject, images: ImageSet, recipe: Recipe, *, what: str) -> list[Row]:
        """The accuracies on the subject's test images after training on these ones."""
        train_labels, test_labels = labels_of(subject)
        check_level(self.level, subject.train)
        learnt = labels_of_part(images)[:, self.level : self.level + 1]
        classifier = Classifier(subject, [len(images.label_names[self.level])], recipe)
        learn(classifier, images, learnt, recipe, subject=subject, what=what)
        said, index = answers(classifier, subject.test, subject=subject, what=what)
        return accuracies(said[:, 0], test_labels[index], train_labels, level=self.level, images=subject.test)
