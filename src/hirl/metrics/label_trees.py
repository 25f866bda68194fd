"""Label levels that are nested: what is said of a fine class says something of the classes above it."""

from __future__ import annotations

import torch
from torch import Tensor


def parents(labels: Tensor, fine: int, coarse: int) -> Tensor | None:
    """(classes,): the class of level `coarse` around each class of level `fine`; None if one lies in several.

    `labels` is (N, levels).
    """
    children, around = labels[:, fine], labels[:, coarse]
    parent = torch.zeros(int(children.max()) + 1, dtype=torch.long)
    parent[children] = around
    return parent if bool((parent[children] == around).all()) else None
