"""Label levels that are nested: what is said of a fine class says something of the classes above it."""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Row, level_name


def parents(labels: Tensor, fine: int, coarse: int) -> Tensor | None:
    """(classes,): the class of level `coarse` around each class of level `fine`; None if one lies in several.

    `labels` is (N, levels).
    """
    children, around = labels[:, fine], labels[:, coarse]
    parent = torch.zeros(int(children.max()) + 1, dtype=torch.long)
    parent[children] = around
    return parent if bool((parent[children] == around).all()) else None


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
