"""KNN: the weighted vote of the nearest training images, at every label level (T = .07 as in the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Evaluation, Needs, Part, Result, Row, Subject
from hirl.evals.labels import labels_of, level_names
from hirl.metrics.agreement import majority_share
from hirl.metrics.knn import KS, TEMPERATURE, check_knn, fitting_ks, knn_accuracy
from hirl.terminal.figures import share


@dataclass(frozen=True, kw_only=True)
class KNN(Evaluation):
    """The paper's KNN protocol: accuracy of a weighted vote among all training images, for each K and the best K.

    Args:
        ks: Numbers of neighbours; by default those of 10, 20, 100 and 200 that the training images allow.
        temperature: T of the weights exp(cos / T).
    """

    name: ClassVar[str] = "knn"
    ks: tuple[int, ...] | None = None
    temperature: float = TEMPERATURE

    @property
    def needs(self) -> Needs:
        return Needs(labels=True)

    @property
    def arguments(self) -> dict[str, Any]:
        """The defaults by their values: the protocol, which names the images, then says which of them were used."""
        return super().arguments | {"ks": KS if self.ks is None else self.ks}

    def check(self, parts: Mapping[Part, ImageSet]) -> None:
        self._ks(len(parts["train"]))

    def _ks(self, N: int) -> tuple[int, ...]:
        """The numbers of neighbours for N training images, checked."""
        ks = fitting_ks(N) if self.ks is None else self.ks
        check_knn(ks, self.temperature, N)
        return ks

    def run(self, subject: Subject) -> Result:
        train_labels, test_labels = labels_of(subject)
        N = len(subject.train)
        ks = self._ks(N)
        if self.ks is None and ks != KS:
            subject.message(
                f"{self.name}: K = {', '.join(str(k) for k in KS if k > N)} left out, being more than the {N:,} "
                "training images" + ("" if ks[0] in KS else f"; K = {N} instead")
            )
        found = knn_accuracy(  # (K, levels)
            subject.features("train"),
            train_labels,
            subject.features("test"),
            test_labels,
            ks=ks,
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
            for place, k in enumerate(ks)
        ]
        return Result(
            headline={name: share(float(found[best[level], level])) for level, name in enumerate(names)},
            rows=rows,
            chosen={f"K at {name}": ks[best[level]] for level, name in enumerate(names)},
        )
