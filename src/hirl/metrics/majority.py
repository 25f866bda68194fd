"""The share of the largest class: the accuracy of a guess that is the same for every image."""

from __future__ import annotations

from torch import Tensor


def majority_share(labels: Tensor) -> float:
    """Return the share of the most frequent class among `labels` (N,)."""
    return float(labels.bincount().max()) / len(labels)
