"""Ward linkage: join, again and again, the two clusters whose union adds least to the squared distances to the means.

The cost of a union depends on means and weights alone, so it is exact for clusters of rows as well as for rows. All
pairs of clusters that are nearest to each other are joined at once: with Ward's cost no third cluster comes nearer to
a union than to its parts, so the merges are those of one pair at a time (Murtagh & Contreras 2012, arXiv 1105.0121).
That takes matrix products in chunks, and no table of all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hirl.hierarchy.rows import accumulator, chunk_size

# Tie-breakers: relative, and absolute for costs of 0.
TIE_RELATIVE, TIE_ABSOLUTE = 1e-9, 1e-13
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Merges:
    """n − 1 unions of n clusters, cheapest first; a union of clusters comes after those that made them.

    `pairs` (n − 1, 2): cluster n + k is that of the k-th pair.
    """

    pairs: Tensor

    def cut(self, size: int) -> Tensor:
        """Return the cluster (n,) of each of the n first ones when `size` are left, counted from 0."""
        n = len(self.pairs) + 1
        into = torch.arange(2 * n - 1, device=self.pairs.device)
        done = n - size
        into[self.pairs[:done].flatten()] = torch.arange(n, n + done, device=into.device).repeat_interleave(2)
        while not torch.equal(into, further := into[into]):
            into = further
        return into[:n].unique(return_inverse=True)[1]


def ward_merges(means: Tensor, weights: Tensor) -> Merges:
    """Join clusters of the given `means` (n, D) and `weights` (n,) until one is left."""
    n, device = len(means), means.device
    weights = weights.to(accumulator(device))
    means = means.to(weights.dtype)
    means = means - weights @ means / weights.sum()  # less is lost to rounding around 0
    ids, height = torch.arange(n, device=device), weights.new_zeros(n)
    partner, cost = _nearest(means, weights, ids, ids)
    pairs, heights = [], []
    made = n
    while len(ids) > 1:
        places = torch.arange(len(ids), device=device)
        mutual = (partner[partner] == places) & (places < partner)
        if not mutual.any():  # equal costs that differ by rounding point at each other in a circle
            mutual[cost.argmin()] = True
        one = mutual.nonzero().flatten()
        other = partner[one]
        pairs.append(torch.stack((ids[one], ids[other]), dim=1))
        height[one] = torch.maximum(cost[one], torch.maximum(height[one], height[other]))
        heights.append(height[one])
        both = weights[one] + weights[other]
        means[one] += (means[other] - means[one]) * (weights[other] / both)[:, None]
        weights[one] = both
        ids[one] = torch.arange(made, made + len(one), device=device)
        made += len(one)
        changed = torch.zeros_like(mutual).index_fill_(0, torch.cat((one, other)), True)
        stale = changed | changed[partner]
        left = torch.ones_like(mutual).index_fill_(0, other, False)
        partner = (left.cumsum(0) - 1)[partner]
        ids, means, weights, height, partner, cost, stale = (
            of[left] for of in (ids, means, weights, height, partner, cost, stale)
        )
        some = stale.nonzero().flatten()
        partner[some], cost[some] = _nearest(means, weights, ids, some)
    return _sorted(torch.cat(pairs), torch.cat(heights), n)


def _sorted(pairs: Tensor, heights: Tensor, n: int) -> Merges:
    order = heights.argsort(stable=True)
    renamed = torch.arange(2 * n - 1, device=pairs.device)
    renamed[n + order] = torch.arange(n, 2 * n - 1, device=pairs.device)
    return Merges(renamed[pairs[order]])


def _nearest(means: Tensor, weights: Tensor, ids: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place (n,) of the cluster that each of `some` (n,) is joined with at least cost, and the cost (n,).

    A small term that depends on the sum of two numbers decides between equal costs, such as those of repeated rows:
    pairs with the same sum then choose each other, and half of the clusters find a partner at once.
    """
    partner, cost = torch.empty_like(some), weights.new_empty(len(some))
    squares = means.square().sum(1)
    step = chunk_size(means.device, len(means))
    for start in range(0, len(some), step):
        chunk = some[start : start + step]
        added = torch.addmm(squares, means[chunk], means.T, alpha=-2).add_(squares[chunk, None]).clamp_(min=0)
        added *= weights * weights[chunk, None] / (weights + weights[chunk, None])
        added += (added * TIE_RELATIVE + TIE_ABSOLUTE) * ((ids + ids[chunk, None]) * GOLDEN % 1)
        added[torch.arange(len(chunk), device=some.device), chunk] = torch.inf
        cost[start : start + step], partner[start : start + step] = added.min(1)
    return partner, cost
