"""KNN evaluation: the weighted vote of the nearest training images, at every label level (T = .07 as in the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hirl.evals.base import Evaluation, Result, Row, Subject, labels_of, level_names
from hirl.evals.neighbours import nearest_rows

KS = (10, 20, 100, 200)
TEMPERATURE = 0.07


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """(K, levels): the share of test images told right by their k nearest training images, for each k and label level.

    Features are (N, D), labels (N, levels); neighbours are found by cosine and vote with weight exp(cos / T). The
    neighbours of the largest k are found once and serve all k and all levels.
    """
    _check(ks, temperature, len(train))
    train_labels, test_labels = train_labels.to(train.device), test_labels.to(train.device)
    right = torch.zeros(len(ks), train_labels.shape[1], dtype=torch.int64, device=train.device)
    classes = (train_labels.amax(0) + 1).tolist()
    ascending = sorted(enumerate(ks), key=lambda pair: pair[1])
    for found in nearest_rows(train, test, max(ks)):
        # Beside the most similar one: the winner is the same, and no temperature makes the weights too large.
        weights = ((found.similar - found.similar[:, :1]) / temperature).exp()
        for level, count in enumerate(classes):
            labels = train_labels[:, level][found.rows]  # (n, K)
            truth = test_labels[found.queries, level]
            votes = torch.zeros(len(labels), count, device=train.device)
            done = 0
            for place, k in ascending:
                votes.scatter_add_(1, labels[:, done:k], weights[:, done:k])
                done = k
                right[place, level] += (votes.argmax(1) == truth).sum()
    return right.cpu().double() / len(test)


def _check(ks: Sequence[int], temperature: float, N: int) -> None:
    if not ks or min(ks) < 1:
        raise ValueError(f"ks are {tuple(ks)}, but there must be at least one, each a whole number of at least 1")
    if max(ks) > N:
        raise ValueError(f"K = {max(ks)} is more than the {N:,} training images: choose ks of at most {N:,}")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, but must be above 0")


@dataclass(frozen=True, kw_only=True)
class KNN(Evaluation):
    """The paper's KNN protocol: each K, and the best of them, by a weighted vote among all training images.

    Args:
        ks: Numbers of neighbours.
        temperature: T of the weights exp(cos / T).
    """

    name: ClassVar[str] = "knn"
    ks: tuple[int, ...] = KS
    temperature: float = TEMPERATURE

    def run(self, subject: Subject) -> Result:
        train_labels, test_labels = labels_of(subject)
        _check(self.ks, self.temperature, len(subject.train))
        found = knn_accuracy(  # (K, levels)
            subject.features("train"),
            train_labels,
            subject.features("test"),
            test_labels,
            ks=self.ks,
            temperature=self.temperature,
        )
        names = level_names(subject.test)
        best = found.argmax(0).tolist()
        rows: list[Row] = [
            {"labels": name, "K": k, "accuracy": float(found[place, level]), "best": place == best[level]}
            for level, name in enumerate(names)
            for place, k in enumerate(self.ks)
        ]
        return Result(
            headline={name: float(found[best[level], level]) for level, name in enumerate(names)},
            rows=rows,
            chosen={f"K at {name}": self.ks[best[level]] for level, name in enumerate(names)},
        )
