"""Level sizes from features: numbers of clusters that are well separated and reproducible.

For each number K of a grid, K-means clusters a sample of the features, and each half of it alone. The silhouette says
how much nearer an image is to its own cluster than to the next one; it tends to grow with K, and does not stop where
images come in bursts of nearly the same. Whether the clusters of the two halves agree on where all images belong (the
adjusted Rand index) falls with K once clusters are arbitrary cuts. Their product is large where clusters are neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.builder import POOLED_FEATURES, HierarchicalKMeans
from hirl.hierarchy.levels import LEAVES_PER_NODE, Levels, levels_by_number
from hirl.hierarchy.reduction import fit_reduction
from hirl.hierarchy.rows import Features, UnitRows
from hirl.ranks import Ranks

MOST_ROWS = 2000
COARSE_GRID = (3, 4, 6, 8, 12)
GRID = (16, 24, 32, 48, 64, 96, 128, 192, 256)
LEAST_PER_CLUSTER = 8
# Below this product the features have no clear clusters. It is 0.01 to 0.02 on pixels, 0.04 to 0.08 on features of an
# ImageNet network.
MIN_SCORE = 0.03


@dataclass(frozen=True)
class ClusterCount:
    """A number of clusters, and how well it fits the features."""

    clusters: int
    silhouette: float
    agreement: float

    @property
    def score(self) -> float:
        return max(self.silhouette, 0) * max(self.agreement, 0)


def suggest_levels(data: int | Features) -> Levels:
    """Return level sizes, fine → coarse, for N images, or for their features (N, D).

    For a number see `levels_by_number`. For features: as many nodes as there are well-separated clusters that another
    sample reproduces; if the features have no clear clusters, levels for their number.
    """
    return _from_features(data) if isinstance(data, (Tensor, np.ndarray)) and data.ndim > 0 else levels_by_number(data)  # type: ignore[arg-type]


def _from_features(features: Features) -> Levels:
    by_number = levels_by_number(len(features))
    clusterings = search_levels(features)
    if clusterings is None:
        return Levels(by_number, f"the features show no clear clusters; {by_number.why}")
    fine, coarse = clusterings
    leaves = LEAVES_PER_NODE * fine.clusters
    sizes = [fine.clusters, coarse.clusters] if 2 * leaves > len(features) else [leaves, fine.clusters, coarse.clusters]
    fits = " and ".join(
        f"{level.clusters} (silhouette {level.silhouette:.2f}, agreement of clusters from two halves "
        f"{level.agreement:.2f})"
        for level in clusterings
    )
    which = "the images" if len(features) <= MOST_ROWS else f"{MOST_ROWS:,} of the images"
    why = f"numbers of clusters that fit {which} best: {fits}"
    return Levels(sizes, why + (f"; {LEAVES_PER_NODE} leaves per node" if len(sizes) == 3 else ""))


def search_levels(features: Features) -> tuple[ClusterCount, ClusterCount] | None:
    """Return a fine and a coarse clustering that suit features (N, D); None if there are no clear clusters."""
    rows = UnitRows(features)
    fault = rows.fault()
    if fault is not None:
        raise ValueError(fault)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
    units = reduce_rows(rows[order.to(rows.device)])
    most = len(units) // 2 // LEAST_PER_CLUSTER
    candidates = [measure_clusters(units, size) for size in GRID if size <= most]
    if not candidates:
        return None
    fine = max(candidates, key=lambda candidate: candidate.score)
    if fine.score < MIN_SCORE:
        return None
    coarse = [measure_clusters(units, size) for size in COARSE_GRID if 4 * size <= fine.clusters]
    return fine, max(coarse, key=lambda candidate: candidate.score)


def silhouette(units: Tensor, clusters: Tensor, count: int) -> float:
    """Return the mean silhouette of rows (n, D) of unit length, with 1 − cos as distance; 0 for a row alone."""
    members = F.one_hot(clusters, count).to(units.dtype)  # (n, M)
    sizes = members.sum(0)
    distance = sizes - units @ (members.T @ units).T  # (n, M): summed over the cluster's rows
    own = distance.gather(1, clusters[:, None])[:, 0] / (sizes[clusters] - 1).clamp(min=1)
    others = (distance / sizes.clamp(min=1)).masked_fill((members > 0) | (sizes == 0), torch.inf).amin(1)
    values = (others - own) / torch.maximum(others, own).clamp(min=1e-12)
    return float(torch.where((sizes[clusters] > 1) & others.isfinite(), values, 0).mean())


def adjusted_rand(one: Tensor, other: Tensor) -> float:
    """Return the adjusted Rand index of two partitions (n,) of the same rows: 1 if equal, about 0 by chance."""
    table = torch.zeros(int(one.max()) + 1, int(other.max()) + 1, dtype=torch.float64)
    table.index_put_((one.cpu(), other.cpu()), torch.ones(len(one), dtype=torch.float64), accumulate=True)

    def pairs(counts: Tensor) -> float:
        return float((counts * (counts - 1)).sum()) / 2

    both, first, second = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    expected, most = first * second / max(pairs(table.sum()), 1), (first + second) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def reduce_rows(features: Features) -> Tensor:
    """Return the features (N, D) in the space that clusters are searched in, (N, components)."""
    sample = UnitRows(features)
    reduction = {name: getattr(POOLED_FEATURES, name) for name in ("centre", "components", "whiten")}
    return fit_reduction(sample, Ranks(None), **reduction).project(sample)[:]


def measure_clusters(units: Tensor, clusters: int, *, seed: int = 0) -> ClusterCount:
    """Return how well so many clusters fit reduced rows in random order: their silhouette, and whether halves agree."""
    build, half = HierarchicalKMeans(iterations=10), len(units) // 2
    full, one, other = (build(part, (clusters,), seed=seed) for part in (units, units[:half], units[half:]))
    agreement = adjusted_rand(one.assign(units), other.assign(units))
    return ClusterCount(clusters, silhouette(units, full.leaves, clusters), agreement)
