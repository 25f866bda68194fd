"""Linear classification on frozen features: a fast way over features in memory, and each method's official setting."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hirl.evals.base import Evaluation, Result, Row, Subject, labels_of, level_name, level_names
from hirl.evals.logistic import Regressions, fit
from hirl.evals.sampling import held_out
from hirl.evals.settings import LINEAR, Recipe
from hirl.evals.supervised import Classifier, answers, learn

HELD_OUT = 0.1  # of the training images choose the rate
EPOCHS, BATCH_SIZE = 50, 256  # of the fast way
Setting = Literal["fast", "official", "MoCoV2", "SimSiam", "SwAV", "MoCoV3", "DINO", "IBOT"]


@dataclass(frozen=True, kw_only=True)
class Linear(Evaluation):
    """A linear classifier at every label level, on an encoder that stays frozen and in eval mode.

    Args:
        setting: "fast" shows each image once, whole, and fits logistic regressions on the features in memory;
            "official" shows random crops and flips every epoch and trains as the publication of the run's method does;
            a method's name takes that one's setting for any encoder.
        rates: Learning rates the fast way tries, with each weight decay. A tenth of the training images of every class
            chooses, and the winner is fitted anew on all of them; the test images have no say.
        weight_decays: What the fast way tries with each rate.
        standardise: Whether the fast way gives each feature mean 0 and variance 1, rather than only dividing all
            features by one number.
        epochs: None for the setting's own; milestones keep their share of the epochs.
        batch_size: None for the setting's own, made smaller where it would leave under fifty steps an epoch; official
            rates follow it in proportion.
    """

    name: ClassVar[str] = "linear"
    setting: Setting = "fast"
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    weight_decays: tuple[float, ...] = (0.0,)
    standardise: bool = True
    epochs: int | None = None
    batch_size: int | None = None

    def run(self, subject: Subject) -> Result:
        train_labels, test_labels = labels_of(subject)
        if self.setting == "fast":
            return self._fast(subject, train_labels, test_labels)
        return self._official(subject, self._recipe(subject), train_labels, test_labels)

    def _recipe(self, subject: Subject) -> Recipe:
        name = subject.method if self.setting == "official" else self.setting
        if name not in LINEAR:
            whose = "linear.setting is" if self.setting != "official" else f"{subject.name} was trained by"
            raise ValueError(
                f"{whose} {name!r}, which has no official linear setting: choose linear.setting from fast, "
                + ", ".join(LINEAR)
            )
        return LINEAR[name].scaled(len(subject.train), epochs=self.epochs, batch_size=self.batch_size)

    def _official(self, subject: Subject, recipe: Recipe, train_labels: Tensor, test_labels: Tensor) -> Result:
        classes = [len(names) for names in subject.train.label_names]
        classifier = Classifier(subject, classes, recipe)
        # The encoder learns nothing, so one pass serves the classifiers of all levels: none knows of the others.
        learn(classifier, subject.train, train_labels, recipe, subject=subject, what=self.name)
        said, index = answers(classifier, subject.test, subject=subject, what=self.name)
        right = (said == test_labels[index]).double().mean(0)  # (levels,)
        seen = {"features": "pooled, joined with the mean patch token" if classifier.mean_patch else "pooled"}
        return _result(subject, right.tolist(), [{}] * len(classes), recipe.settled | seen)

    def _fast(self, subject: Subject, train_labels: Tensor, test_labels: Tensor) -> Result:
        tried = self._tried()
        aside = held_out(train_labels[:, 0], HELD_OUT, seed=subject.seed)
        if not aside.any():
            raise ValueError(
                f"{subject.train.name} has one image a class, but the fast linear evaluation holds some out to choose "
                "its rate: give more images, or choose an official setting"
            )
        features = subject.features("train").float().to(subject.device)
        asked = subject.features("test").float().to(subject.device)
        right: list[float] = []
        settled: list[dict[str, float]] = []
        for level in range(train_labels.shape[1]):
            labels = train_labels[:, level].to(subject.device)
            fitted = self._fitted(subject, features[~aside], labels[~aside], tried, level)
            found = (fitted.answers(features[aside]) == labels[aside, None]).double().mean(0).tolist()  # (R,)
            best = found.index(max(found))  # of equals the lowest rate
            final = self._fitted(subject, features, labels, tried[best : best + 1], level)
            truth = test_labels[:, level].to(subject.device)
            right.append(float((final.answers(asked)[:, 0] == truth).double().mean()))
            settled.append({"lr": tried[best][0], "weight_decay": tried[best][1], "held-out accuracy": found[best]})
        chosen = {
            "rates": {level_name(subject.train, level): row for level, row in enumerate(settled)},
            "held_out": int(aside.sum()),
        }
        return _result(subject, right, settled, chosen)

    def _tried(self) -> list[tuple[float, float]]:
        """(rate, weight decay), the lowest rates first."""
        if not self.rates or not min(self.rates) > 0:
            raise ValueError(f"linear.rates are {self.rates}, but there must be at least one, each above 0")
        if not self.weight_decays or not min(self.weight_decays) >= 0:
            raise ValueError(f"linear.weight_decays are {self.weight_decays}, but there must be one or more, from 0 up")
        return list(product(sorted(self.rates), self.weight_decays))

    def _fitted(
        self, subject: Subject, features: Tensor, labels: Tensor, tried: list[tuple[float, float]], level: int
    ) -> Regressions:
        epochs = EPOCHS if self.epochs is None else self.epochs
        batch_size = BATCH_SIZE if self.batch_size is None else self.batch_size
        for name, value in (("epochs", epochs), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"linear.{name} is {value}, but must be at least 1")
        what = f"{self.name}, {level_name(subject.train, level)}"
        return fit(
            features,
            labels,
            classes=len(subject.train.label_names[level]),
            rates=torch.tensor([rate for rate, _ in tried]),
            weight_decays=torch.tensor([decay for _, decay in tried]),
            epochs=epochs,
            batch_size=batch_size,
            standardise=self.standardise,
            seed=subject.seed,
            told=lambda done: subject.progress(what, done, epochs),
        )


def _result(subject: Subject, right: list[float], more: list[dict[str, Any]], chosen: dict[str, Any]) -> Result:
    names = level_names(subject.test)
    rows: list[Row] = [
        {"labels": name, "accuracy": share} | extra for name, share, extra in zip(names, right, more, strict=True)
    ]
    return Result(dict(zip(names, right, strict=True)), rows, chosen)
