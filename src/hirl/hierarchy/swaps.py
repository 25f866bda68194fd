"""Swaps of leaves: merge two siblings that fit in one leaf, and split another leaf with the freed one.

Lloyd's steps end in local optima, in which two leaves share one group of rows while another leaf holds two groups. The
cosines of unit rows to their mean direction sum up to the length of their sum, so what is lost by joining two leaves
and gained by cutting one are known exactly. Both happen within a node: coarser levels do not change.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.draws import EQUAL_DISTANCE
from hirl.hierarchy.rows import UnitRows
from hirl.ranks import Ranks
from hirl.seeds import mix_seed

# A cut must gain this multiple of what the join costs, and leave this many rows on each side: with one row, swaps would
# split small classes into leaves of single images.
GAIN_RATIO, MIN_ROWS = 1.2, 2
AXIS_STEPS = 3  # of the power iteration that finds the longest axis of a leaf
# Share of leaves tried for a split: those with the largest spread. The others gain too little.
CUT_SHARE = 0.25


def swap_leaves(
    rows: UnitRows, leaves: Tensor, parents: Tensor, ranks: Ranks, seed: tuple[int, ...], *, max_rows: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the leaves (n,) of this rank's rows and the parents (M,) of the leaves after all swaps that pay.

    Args:
        rows: This rank's rows.
        leaves: (n,) the leaf of each.
        parents: (M,) the node of each leaf.
        ranks: The processes that the rows are spread over.
        seed: Seed of the directions from which the search for the axes of the leaves starts.
        max_rows: Only leaves of at most this many rows join a sibling; None for all.
    """
    counts = ranks.sum(torch.bincount(leaves, minlength=len(parents)))
    few = counts <= (counts.max() if max_rows is None else max_rows)
    if not (few & (counts > 0)).any():
        return leaves, parents
    sums = ranks.sum(rows.sums(leaves, len(parents)))
    length = torch.linalg.vector_norm(sums, dim=1)
    loss, sibling = _joins(sums, length, counts, parents)
    loss = torch.where(few, loss, torch.inf)
    far = counts - length  # (M,) 1 − cos, summed over the rows
    gain, side = _cuts(rows, leaves, sums, counts, far >= far.quantile(1 - CUT_SHARE), ranks, seed)
    swaps = _match_swaps(loss.tolist(), sibling.tolist(), gain.tolist())
    if not swaps:
        return leaves, parents
    free, kept, cut = ranks.broadcast(torch.tensor(swaps, device=leaves.device)).T
    same = torch.arange(len(parents), device=leaves.device)
    into, half = same.index_copy(0, free, kept), same.index_copy(0, cut, free)
    return torch.where(side, half[leaves], into[leaves]), parents.index_copy(0, free, parents[cut])


def _joins(sums: Tensor, length: Tensor, counts: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is lost (M,) by joining each leaf with the sibling (M,) that it fits best; ∞ for an only child."""
    loss, sibling = torch.full_like(length, torch.inf), torch.zeros_like(parents)
    order = parents.argsort(stable=True)
    for children in order.split(torch.bincount(parents).tolist()):
        own = children[counts[children] > 0]
        if len(own) > 1:
            single = length[own]
            together = (single[:, None].square() + single.square() + 2 * sums[own] @ sums[own].T).clamp(min=0).sqrt()
            lost, place = (single[:, None] + single - together).fill_diagonal_(torch.inf).min(1)
            loss[own], sibling[own] = lost, own[place]
    return loss, sibling


def _cuts(
    rows: UnitRows, leaves: Tensor, sums: Tensor, counts: Tensor, some: Tensor, ranks: Ranks, seed: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Cut some (M,) leaves across their longest axis: what is gained (M,), and which rows (n,) are on the far side."""
    M, dtype = len(counts), sums.dtype
    means = (sums / counts.clamp(min=1)[:, None]).float()
    generator = torch.Generator().manual_seed(mix_seed(*seed))
    axes = F.normalize(torch.randn(M, rows.dim, generator=generator), dim=1).to(rows.device)
    places = some[leaves].nonzero().flatten()

    def offsets() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield places, rows less the mean of their leaf, and how far they lie along its axis."""
        for chunk in places.split(rows.at_once(rows.dim)):
            off = rows[chunk] - means[leaves[chunk]]
            yield chunk, off, (off * axes[leaves[chunk]]).sum(1)

    for _ in range(AXIS_STEPS):
        turned = torch.zeros_like(sums)
        for chunk, off, along in offsets():
            turned.index_add_(0, leaves[chunk], (along[:, None] * off).to(dtype))
        axes = F.normalize(ranks.sum(turned), dim=1).float()
    side = torch.zeros(len(leaves), dtype=torch.bool, device=leaves.device)
    halves, far_counts = torch.zeros_like(sums), torch.zeros_like(counts)
    for chunk, _, along in offsets():
        far = along > 0
        side[chunk] = far
        halves.index_add_(0, leaves[chunk[far]], rows[chunk[far]].to(dtype))
        far_counts += torch.bincount(leaves[chunk[far]], minlength=M)
    halves, far_counts = ranks.sum(halves), ranks.sum(far_counts)
    lengths = [torch.linalg.vector_norm(part, dim=1) for part in (halves, sums - halves, sums)]
    enough = some & (far_counts >= MIN_ROWS) & (counts - far_counts >= MIN_ROWS)
    return torch.where(enough, lengths[0] + lengths[1] - lengths[2], 0), side


def _match_swaps(loss: list[float], sibling: list[int], gain: list[float]) -> list[tuple[int, int, int]]:
    """Return swaps (free leaf, the sibling it joins, the leaf that is cut): the cheapest join, the best cut, and on."""
    growing = iter(sorted(range(len(gain)), key=lambda leaf: (-gain[leaf], leaf)))
    cut = next(growing)
    used: set[int] = set()
    swaps = []
    for free in sorted(range(len(loss)), key=lambda leaf: (loss[leaf], leaf)):
        if {free, sibling[free]} & used:
            continue
        while cut in used or cut in (free, sibling[free]):
            cut = next(growing, -1)
        if cut < 0 or gain[cut] <= max(GAIN_RATIO * loss[free], EQUAL_DISTANCE):
            break
        used |= {free, sibling[free], cut}
        swaps.append((free, sibling[free], cut))
    return swaps
