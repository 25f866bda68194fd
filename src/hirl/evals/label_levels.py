"""Accuracy at the label level that was learnt, and at the coarser levels that contain its classes."""

from __future__ import annotations

from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Row
from hirl.evals.labels import level_name
from hirl.metrics.label_trees import parents
from hirl.metrics.majority import majority_share
from hirl.terminal.figures import share


def accuracies(predictions: Tensor, truth: Tensor, known: Tensor, *, level: int, images: ImageSet) -> list[Row]:
    """The share of images classified correctly at `level`, and at each coarser level in which it is nested.

    predictions: (N,) classes of `level`; truth: (N, levels); known: (M, levels), the labels that give the nesting.
    """
    rows: list[Row] = [_row(images, level, predictions, truth, "learnt")]
    for coarse in range(level + 1, truth.shape[1]):
        parent = parents(known, level, coarse)
        if parent is not None:
            rows.append(_row(images, coarse, parent[predictions], truth, "parent of the finer class"))
    return rows


def _row(images: ImageSet, level: int, predictions: Tensor, truth: Tensor, how: str) -> Row:
    accuracy = share(float((predictions == truth[:, level]).double().mean()))
    majority = share(majority_share(truth[:, level]))
    return {"labels": level_name(images, level), "accuracy": accuracy, "majority": majority, "prediction": how}
