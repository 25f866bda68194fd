"""Accuracy of the weighted vote of the nearest rows, for several numbers of neighbours at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from hirl.metrics.neighbours import nearest_rows

KS = (10, 20, 100, 200)
TEMPERATURE = 0.07
QUERY_EVERY = 5


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
    device: torch.device | None = None,
) -> Tensor:
    """(K, levels): the share of test images that their k nearest training images classify correctly, per k and level.

    Features are (N, D), labels (N, levels). Neighbours are found by cosine and vote with weight exp(cos / T). Those of
    the largest k are found once and used for all k and all levels. `device`: where to compare; by default where the
    features are, which may be mapped from a file.
    """
    check_knn(ks, temperature, len(train))
    where = train.device if device is None else device
    train_labels, test_labels = train_labels.to(where), test_labels.to(where)
    correct = torch.zeros(len(ks), train_labels.shape[1], dtype=torch.int64, device=where)
    classes = (train_labels.amax(0) + 1).tolist()
    ascending = sorted(enumerate(ks), key=lambda pair: pair[1])
    for found in nearest_rows(train, test, max(ks), device=where):
        # Relative to the most similar one: the winner is the same, and no temperature makes the weights overflow.
        weights = ((found.similar - found.similar[:, :1]) / temperature).exp()
        for level, count in enumerate(classes):
            labels = train_labels[:, level][found.rows]  # (n, K)
            truth = test_labels[found.queries, level]
            votes = torch.zeros(len(labels), count, device=where)
            done = 0
            for place, k in ascending:
                votes.scatter_add_(1, labels[:, done:k], weights[:, done:k])
                done = k
                correct[place, level] += (votes.argmax(1) == truth).sum()
    return correct.cpu().double() / len(test)


def held_out_accuracy(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(levels,): `best_accuracy` of every fifth row as a query, with the others as the gallery; the queries' labels.

    Features are (N, D), labels (N, levels).
    """
    query = torch.arange(len(features)) % QUERY_EVERY == 0
    return best_accuracy(features[~query], labels[~query], features[query], labels[query]), labels[query]


def best_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> Tensor:
    """(levels,): `knn_accuracy` with the best of the usual numbers of neighbours that there are images for."""
    return knn_accuracy(train, train_labels, test, test_labels, ks=fitting_ks(len(train))).amax(0)


def fitting_ks(N: int) -> tuple[int, ...]:
    """The usual numbers of neighbours that N training images allow; N itself if there are fewer than any of them."""
    return tuple(k for k in KS if k <= N) or (N,)


def check_knn(ks: Sequence[int], temperature: float, N: int) -> None:
    if not ks or not all(isinstance(k, SupportsIndex) and k >= 1 for k in ks):
        raise ValueError(f"ks are {tuple(ks)}, but there must be at least one, each a whole number of at least 1")
    if max(ks) > N:
        raise ValueError(f"K is {max(ks)}, but must be at most the number of training images, {N:,}")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, but must be above 0")
