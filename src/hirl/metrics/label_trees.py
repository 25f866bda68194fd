"""Nested label levels: the coarse class that contains each fine class."""

from __future__ import annotations

import torch
from torch import Tensor


def parents(labels: Tensor, fine: int, coarse: int) -> Tensor | None:
    """(classes,): the class of level `coarse` that contains each class of level `fine`; None if one lies in several.

    `labels` is (N, levels).
    """
    children, around = labels[:, fine], labels[:, coarse]
    parent = torch.zeros(int(children.max()) + 1, dtype=torch.long)
    parent[children] = around
    return parent if bool((parent[children] == around).all()) else None
