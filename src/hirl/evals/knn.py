"""KNN: the weighted vote of the nearest training images, at every label level (T = .07 as in the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hirl.evals.base import Evaluation, Needs, Result, Row, Subject
from hirl.evals.labels import labels_of, level_names
from hirl.metrics.knn import KS, TEMPERATURE, check_knn, knn_accuracy
from hirl.metrics.majority import majority_share
from hirl.terminal.figures import share


@dataclass(frozen=True, kw_only=True)
class KNN(Evaluation):
    """The paper's KNN protocol: accuracy of a weighted vote among all training images, for each K and the best K.

    Args:
        ks: Numbers of neighbours.
        temperature: T of the weights exp(cos / T).
    """

    name: ClassVar[str] = "knn"
    ks: tuple[int, ...] = KS
    temperature: float = TEMPERATURE

    @property
    def needs(self) -> Needs:
        return Needs(labels=True)

    def run(self, subject: Subject) -> Result:
        train_labels, test_labels = labels_of(subject)
        check_knn(self.ks, self.temperature, len(subject.train))
        found = knn_accuracy(  # (K, levels)
            subject.features("train"),
            train_labels,
            subject.features("test"),
            test_labels,
            ks=self.ks,
            temperature=self.temperature,
            device=subject.device,
        )
        names = level_names(subject.test)
        best = found.argmax(0).tolist()
        rows: list[Row] = [
            {
                "labels": name,
                "K": k,
                "accuracy": share(float(found[place, level])),
                "majority": share(majority_share(test_labels[:, level])),
                "best": place == best[level],
            }
            for level, name in enumerate(names)
            for place, k in enumerate(self.ks)
        ]
        return Result(
            headline={name: share(float(found[best[level], level])) for level, name in enumerate(names)},
            rows=rows,
            chosen={f"K at {name}": self.ks[best[level]] for level, name in enumerate(names)},
        )
