"""KNN evaluation: the weighted vote of the nearest training images, at every label level (T = .07 as in the paper)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

KS = (10, 20, 100, 200)
TEMPERATURE = 0.07
CHUNK = 1 << 24  # similarities in the making at a time: 64 MiB


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
    ks = [k for k in ks if k <= len(train)] or [len(train)]
    train, test = F.normalize(train.float(), dim=1), F.normalize(test.float(), dim=1)
    right = torch.zeros(len(ks), train_labels.shape[1])
    classes = [int(train_labels[:, level].max()) + 1 for level in range(train_labels.shape[1])]
    for rows, truth in zip(
        test.split(max(1, CHUNK // len(train))), test_labels.split(max(1, CHUNK // len(train))), strict=True
    ):
        similar, nearest = (rows @ train.T).topk(max(ks), dim=1)  # (n, K), most similar first
        weights = (similar / temperature).exp()
        for level, count in enumerate(classes):
            labels = train_labels[nearest, level]  # (n, K)
            votes = torch.zeros(len(rows), count, device=rows.device)
            done = 0
            for place, k in sorted(enumerate(ks), key=lambda pair: pair[1]):
                votes.scatter_add_(1, labels[:, done:k], weights[:, done:k])
                done = k
                right[place, level] += (votes.argmax(1) == truth[:, level]).sum().cpu()
    return right / len(test)
