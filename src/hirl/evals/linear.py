"""Linear classification on frozen features: fast, on features in memory, or by each method's official settings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hirl import ranks
from hirl.evals.base import Evaluation, Needs, Result, Row, Subject
from hirl.evals.labels import labels_of, level_name, level_names
from hirl.evals.training.classifier_training import Classifier, Supervision
from hirl.evals.training.logistic import Regressions, fit
from hirl.evals.training.sampling import held_out
from hirl.evals.training.training_settings import LINEAR, TrainingSettings, as_published
from hirl.metrics.agreement import majority_share
from hirl.processes import Precision
from hirl.terminal.figures import share

HELD_OUT = 0.1  # share of the training images that the rate is chosen on
EPOCHS, BATCH_SIZE = 50, 256  # of the fast setting
SETTINGS = ("fast", "official", *LINEAR)
Setting = Literal[SETTINGS]  # type: ignore[valid-type] # which the command line lists and checks


@dataclass(frozen=True, kw_only=True)
class Linear(Evaluation):
    """A linear classifier per label level, on an encoder that stays frozen and in eval mode.

    Args:
        setting: "fast" fits logistic regressions on the features of centre-cropped images, in memory; "official" trains
            on random crops and flips, as the publication of the run's method does; a method's name uses that method's
            settings for any encoder. Those of IBOT try 45 rates side by side and report the best on the test images.
        rates: Learning rates that "fast" tries, with each weight decay. They are compared on a tenth of the training
            images per class, and the best is fitted again on all training images; test images play no part.
        weight_decays: Weight decays that "fast" tries with each rate.
        standardise: Whether "fast" gives each feature mean 0 and variance 1; if not, all features are divided by one
            number.
        epochs: None for the setting's own; milestones keep their share of the epochs.
        batch_size: None for the setting's own, made smaller where it would leave under fifty steps per epoch; official
            rates scale with it.
        precision: Of the forward pass of official settings.
        accumulate: Parts that a batch of official settings is cut into if it does not fit at once.
    """

    name: ClassVar[str] = "linear"
    setting: Setting = "fast"
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    weight_decays: tuple[float, ...] = (0.0,)
    standardise: bool = True
    epochs: int | None = None
    batch_size: int | None = None
    precision: Precision = "32-true"
    accumulate: int = 1

    @property
    def needs(self) -> Needs:
        return Needs(labels=True, features=self.setting == "fast")

    def run(self, subject: Subject) -> Result:
        train_labels, test_labels = labels_of(subject)
        if self.setting == "fast":
            return self._fast(subject, train_labels, test_labels)
        return self._official(subject, self._settings(subject), train_labels, test_labels)

    def _settings(self, subject: Subject) -> TrainingSettings:
        if self.setting == "official":
            source, published = f"{subject.name} was trained by {subject.method!r}", subject.facts.linear
            settings = None if published is None else as_published(published)
        else:
            source, settings = f"linear.setting is {self.setting!r}", LINEAR.get(self.setting)
        if settings is None:
            choices = ", ".join(LINEAR)
            raise ValueError(
                f"{source}, which has no official linear setting: choose linear.setting from fast, {choices}"
            )
        if settings.rates and self.precision == "16-mixed":
            raise ValueError("linear.precision is 16-mixed, in which the highest rates overflow: choose bf16-mixed")
        pieces = max(1, self.accumulate) * ranks.world().size
        return settings.for_images(len(subject.train), epochs=self.epochs, batch_size=self.batch_size, pieces=pieces)

    def _official(
        self, subject: Subject, settings: TrainingSettings, train_labels: Tensor, test_labels: Tensor
    ) -> Result:
        classes = [len(names) for names in subject.train.label_names]
        classifier = Classifier(subject, classes, settings)
        # The encoder is frozen, so one pass trains the classifiers of all levels without any effect on each other.
        training = Supervision(subject, settings, self.name, self.precision, self.accumulate)
        training.learn(classifier, subject.train, train_labels)
        predictions, index = training.predict(classifier, subject.test)
        test_labels = test_labels[index]  # of those that could be read
        right = predictions.unflatten(1, (len(classes), -1)) == test_labels[:, :, None]  # (n, levels, rates)
        accuracies, best = right.double().mean(0).max(1)  # (levels,)
        features = "pooled, joined with the mean patch token" if classifier.mean_patch else "pooled"
        chosen = settings.effective | {"features": features}
        more: list[dict[str, Any]] = [{} for _ in classes]
        if settings.rates:
            del chosen["rates"]
            more = [{"lr": settings.rates[place]} for place in best.tolist()]
            chosen |= {"rates_tried": len(settings.rates), "rate_chosen_on": "the test images, as in the original"}
        return _result(subject, test_labels, accuracies.tolist(), more, chosen)

    def _fast(self, subject: Subject, train_labels: Tensor, test_labels: Tensor) -> Result:
        tried = self._grid()
        validation = held_out(train_labels[:, 0], HELD_OUT, seed=subject.seed)
        if not validation.any():
            raise ValueError(
                f"{subject.train.name} has one image per class, but the fast linear evaluation holds some out to "
                "choose its rate: give more images, or choose an official setting"
            )
        features = subject.features("train").to(subject.device)  # as they are stored: `fit` converts batch by batch
        test_features = subject.features("test").to(subject.device)
        others, aside = (part.nonzero().flatten().to(subject.device) for part in (~validation, validation))
        accuracies: list[float] = []
        chosen: list[dict[str, float]] = []
        for level in range(train_labels.shape[1]):
            labels = train_labels[:, level].to(subject.device)
            fitted = self._fit(subject, features, labels, tried, level, rows=others)
            predictions = fitted.predict(features, aside)  # (n, R)
            found = (predictions == labels[aside, None]).double().mean(0).tolist()  # (R,)
            best = found.index(max(found))  # on ties the lowest rate
            final = self._fit(subject, features, labels, tried[best : best + 1], level)
            truth = test_labels[:, level].to(subject.device)
            accuracies.append(float((final.predict(test_features)[:, 0] == truth).double().mean()))
            rate, decay = tried[best]
            chosen.append({"lr": rate, "weight_decay": decay, "held-out accuracy": share(found[best])})
        settings = {
            "rates": {level_name(subject.train, level): row for level, row in enumerate(chosen)},
            "held_out": int(validation.sum()),
        }
        return _result(subject, test_labels, accuracies, chosen, settings)

    def _grid(self) -> list[tuple[float, float]]:
        """(rate, weight decay), the lowest rates first."""
        if not self.rates or not min(self.rates) > 0:
            raise ValueError(f"linear.rates are {self.rates}, but there must be at least one, each above 0")
        if not self.weight_decays or not min(self.weight_decays) >= 0:
            raise ValueError(f"linear.weight_decays are {self.weight_decays}, but there must be one or more, from 0 up")
        return list(product(sorted(self.rates), self.weight_decays))

    def _fit(
        self,
        subject: Subject,
        features: Tensor,
        labels: Tensor,
        tried: list[tuple[float, float]],
        level: int,
        rows: Tensor | None = None,
    ) -> Regressions:
        epochs = EPOCHS if self.epochs is None else self.epochs
        batch_size = BATCH_SIZE if self.batch_size is None else self.batch_size
        for name, value in (("epochs", epochs), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"linear.{name} is {value}, but must be at least 1")
        task = f"{self.name}, {level_name(subject.train, level)}"
        return fit(
            features,
            labels,
            rows,
            classes=len(subject.train.label_names[level]),
            rates=torch.tensor([rate for rate, _ in tried]),
            weight_decays=torch.tensor([decay for _, decay in tried]),
            epochs=epochs,
            batch_size=batch_size,
            standardise=self.standardise,
            seed=subject.seed,
            progress=lambda done: subject.progress(task, done, epochs),
        )


def _result(
    subject: Subject, test_labels: Tensor, accuracies: list[float], more: list[dict[str, Any]], chosen: dict[str, Any]
) -> Result:
    headline = {name: share(value) for name, value in zip(level_names(subject.test), accuracies, strict=True)}
    rows: list[Row] = [
        {"labels": name, "accuracy": accuracy, "majority": share(majority_share(test_labels[:, level]))} | extra
        for level, ((name, accuracy), extra) in enumerate(zip(headline.items(), more, strict=True))
    ]
    return Result(headline, rows, chosen)
