"""Mean directions of the rows of each node: what prototypes are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.draws import EQUAL_DISTANCE
from hirl.hierarchy.rows import UnitRows
from hirl.ranks import Ranks


def mean_directions(
    rows: UnitRows,
    leaves: Tensor,
    levels: Sequence[int],
    parents: Sequence[Tensor],
    ranks: Ranks | None = None,
    *,
    default: Tensor | Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return the mean direction (M_l, D) of the rows of each node.

    Sums are in float64, so that the result depends neither on the order of the rows nor on the ranks that hold them.

    Args:
        rows: This rank's rows.
        leaves: (n,) The leaf of each, −1 for a row that is left out.
        levels: Nodes per level, fine to coarse.
        parents: (M_l,) The parent of each node, for all levels but the last.
        ranks: The processes that the rows are spread over; None if this one has them all.
        default: For nodes without rows, or whose rows cancel out: a direction (D,) for all, or one per node of each
            level (M_l, D); by default the mean direction of all rows.
    """
    sums = rows.sums(leaves, levels[0])
    if ranks is not None:
        sums = ranks.sum(sums)
    if default is None:
        default = F.normalize(sums.sum(0), dim=0).float()
    means = []
    for level, size in enumerate(levels):
        if level:
            sums = sums.new_zeros(size, rows.dim).index_add_(0, parents[level - 1], sums)
        length = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
        fallback = default if isinstance(default, Tensor) else default[level]
        means.append(torch.where(length > EQUAL_DISTANCE, sums / length, fallback).to(fallback.dtype))
    return tuple(means)
