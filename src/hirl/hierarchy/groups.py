"""Rows in groups."""

from __future__ import annotations

import torch
from torch import Tensor


def place_in_group(groups: Tensor, order: Tensor | None = None) -> Tensor:
    """Return the place (n,), from 0, of each row among the rows of its group, `groups` (n,).

    `order` (n,) lists the rows from first to last; by default they are in order.
    """
    order = torch.arange(len(groups)) if order is None else order
    order = order[groups[order].argsort(stable=True)]  # by group, and within a group as before
    sizes = torch.bincount(groups)
    starts = sizes.cumsum(0) - sizes
    places = torch.empty_like(groups)
    places[order] = torch.arange(len(groups)) - starts[groups[order]]
    return places
