"""Accuracy at a label level that was learnt, and at the coarser levels its classes lie in."""

from __future__ import annotations

from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Row, level_name
from hirl.metrics.label_trees import parents


def accuracies(said: Tensor, truth: Tensor, known: Tensor, *, level: int, images: ImageSet) -> list[Row]:
    """The share of images told right at the level that was learnt, and at the coarser ones its classes lie in.

    said: (N,) classes of `level`; truth: (N, levels); known: (M, levels), the labels the tree is read from.
    """
    rows: list[Row] = [_row(images, level, said == truth[:, level], "learnt")]
    for coarse in range(level + 1, truth.shape[1]):
        parent = parents(known, level, coarse)
        if parent is not None:
            rows.append(_row(images, coarse, parent[said] == truth[:, coarse], "from the finer answer"))
    return rows


def _row(images: ImageSet, level: int, right: Tensor, how: str) -> Row:
    return {"labels": level_name(images, level), "accuracy": float(right.double().mean()), "answer": how}


def check_level(level: int, images: ImageSet) -> None:
    levels = len(images.label_names)
    if not 0 <= level < levels:
        raise ValueError(f"level is {level}, but {images.name} has the label levels 0 (finest) to {levels - 1}")
