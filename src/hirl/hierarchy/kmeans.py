"""Hierarchical K-means: bottom-up, prototypes of the features and then of the prototypes (Alg. 1), or top-down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.levels import check_levels
from hirl.hierarchy.lloyd import SAME, Clusters, Lloyd, Prototypes
from hirl.hierarchy.ranks import Ranks
from hirl.hierarchy.rows import Features, UnitRows, accumulator
from hirl.hierarchy.tree import PrototypeTree

TreeProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (level, step, rows done in that step) after every chunk; steps count on over restarts."""

# The share of empty leaves above which settling an earlier tree has failed; over the epochs of a run it was under .02.
MOST_EMPTY = 0.05

Order: TypeAlias = Literal["bottom-up", "top-down"]


def kmeans_tree(
    features: Features,
    levels: Sequence[int],
    *,
    iterations: int,
    restarts: int,
    tolerance: float,
    spherical: bool,
    order: Order,
    weighted: bool,
    path_steps: int,
    seed: int,
    init: PrototypeTree | None,
    index: Tensor | None,
    group: dist.ProcessGroup | None,
    progress: TreeProgress | None,
) -> PrototypeTree:
    """Build the tree of `HierarchicalKMeans`, which explains the arguments, states their defaults and checks them.

    Starting rows are drawn by their position in the data set (`index`), so that the tree does not depend on the order
    of the rows or on the rank that holds them. K-means leaves no cluster empty; steps over paths may empty a leaf.
    """
    ranks = Ranks(group)
    index = None if index is None else torch.as_tensor(index)
    rows, N = _checked(features, index, ranks)
    sizes = check_levels(levels, N)
    if seed < 0:
        raise ValueError(f"seed must be at least 0, not {seed}")
    if init is not None and (init.levels != sizes or init.dim != rows.dim):
        raise ValueError(
            f"init has levels {init.levels} of dimension {init.dim}; expected {sizes} of dimension {rows.dim}"
        )
    lloyd = {"iterations": iterations, "tolerance": tolerance}
    build = _Levels(rows, sizes, index, spherical, ranks, restarts, seed, init, progress, lloyd)
    return build.bottom_up(weighted=weighted) if order == "bottom-up" else build.top_down(path_steps)


@dataclass
class _Levels:
    """The levels of one tree."""

    rows: UnitRows
    sizes: tuple[int, ...]
    index: Tensor | None
    spherical: bool
    ranks: Ranks
    restarts: int
    seed: int
    init: PrototypeTree | None
    progress: TreeProgress | None
    lloyd: dict[str, Any]

    def bottom_up(self, *, weighted: bool) -> PrototypeTree:
        """Cluster the rows, then the prototypes of each level for the next."""
        found = self._cluster(0)
        leaves, counts = found.index, found.counts
        prototypes, parents = [found.prototypes.rows], []
        for level in range(1, len(self.sizes)):
            below = UnitRows(prototypes[-1], name=f"prototypes of level {level - 1}")
            weights = counts if weighted else None
            found = self._cluster(level, rows=below, index=None, ranks=Ranks(None), weights=weights)
            # Every rank computes the upper levels; on GPUs sums may differ in the last bit: the first rank's are used.
            prototypes.append(self.ranks.first(found.prototypes.rows))
            parents.append(self.ranks.first(found.index))
            counts = counts.new_zeros(self.sizes[level]).index_add_(0, parents[-1], counts)
        return self._tree(prototypes, parents, leaves)

    def top_down(self, path_steps: int) -> PrototypeTree:
        """Cluster the rows into the nodes of the coarsest level, then the rows of each node into its children.

        Then all levels are settled together: each row goes to the leaf of the path nearest to it, which may lie in
        another node than the one it was split from, and every node becomes the mean direction of its rows. The tree of
        earlier features is settled only, which takes a fifth of the time. If that leaves too many leaves empty, all
        levels are clustered again, from the earlier prototypes: nodes that still fit keep their number, which the heads
        have learnt.
        """
        settles = self.spherical and len(self.sizes) > 1
        if settles and path_steps and self.init is not None and _every_node_has_a_child(self.init):
            tree = self._settled(replace(self.init.to(self.rows.device), by_path=True), path_steps)
            if self._empty_leaves(tree) <= MOST_EMPTY * self.sizes[0]:
                return tree
        prototypes: list[Tensor] = []
        parents: list[Tensor] = []
        inside: dict[str, Tensor] = {}
        for level in reversed(range(len(self.sizes))):
            found = self._cluster(level, **inside)
            inside = {"inside": found.index, "coarse": found.prototypes.rows}
            prototypes.insert(0, found.prototypes.rows)
            if found.prototypes.parents is not None:
                parents.insert(0, found.prototypes.parents)
        tree = self._tree(prototypes, parents, found.index)
        return self._settled(replace(tree, by_path=True), path_steps) if settles else tree

    def _settled(self, tree: PrototypeTree, steps: int) -> PrototypeTree:
        """Take Lloyd's steps over whole paths; the parent of each node stays."""
        for step in range(steps):
            leaves = tree.assign_rows(self.rows)
            if self.progress is not None and self.init is not None:
                self.progress(0, step, len(self.rows))
            sums = torch.zeros(self.sizes[0], self.rows.dim, dtype=accumulator(self.rows.device), device=tree.device)
            for chunk in self.rows.chunks(self.rows.dim):
                sums.index_add_(0, leaves[chunk], self.rows[chunk].to(sums.dtype))
            sums = self.ranks.sum(sums)
            prototypes = []
            for level, before in enumerate(tree.prototypes):
                length = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
                prototypes.append(torch.where(length > SAME, sums / length, before).to(before.dtype))
                if level < len(tree.parents):
                    above = sums.new_zeros(self.sizes[level + 1], self.rows.dim)
                    sums = above.index_add_(0, tree.parents[level], sums)
            tree = replace(tree, prototypes=tuple(prototypes))
        return replace(tree, leaves=tree.assign_rows(self.rows))

    def _empty_leaves(self, tree: PrototypeTree) -> int:
        counts = self.ranks.sum(torch.bincount(tree.leaves, minlength=self.sizes[0]))
        return int((counts == 0).sum())

    def _cluster(self, level: int, **changed: Any) -> Clusters:
        """Return the best of all starts, the first of which is this level of `init`."""
        shown = None if self.progress is None else partial(self.progress, level)
        given: dict[str, Any] = {"rows": self.rows, "index": self.index, "ranks": self.ranks, "progress": shown}
        lloyd = Lloyd(clusters=self.sizes[level], spherical=self.spherical, **given | changed)
        starts = [self._first_start(level, lloyd), *[None] * (self.restarts - 1)]
        tried = (
            lloyd.run(start, seed=(self.seed, level, restart), **self.lloyd) for restart, start in enumerate(starts)
        )
        return min(tried, key=lambda found: found.distance)

    def _first_start(self, level: int, lloyd: Lloyd) -> Prototypes | None:
        if self.init is None:
            return None
        rows = self.init.prototypes[level].to(self.rows.device).float()
        if lloyd.coarse is None:
            return Prototypes(rows)
        parents = self.init.parents[level].to(self.rows.device)
        childless = len(parents.unique()) < len(lloyd.coarse)  # its rows would have no prototype
        return None if childless else Prototypes(rows, parents)

    def _tree(self, prototypes: list[Tensor], parents: list[Tensor], leaves: Tensor) -> PrototypeTree:
        units = prototypes if self.spherical else [F.normalize(level, dim=1) for level in prototypes]
        return PrototypeTree(prototypes=tuple(units), parents=tuple(parents), leaves=leaves)


def _every_node_has_a_child(tree: PrototypeTree) -> bool:
    return all(len(parents.unique()) == size for parents, size in zip(tree.parents, tree.levels[1:], strict=True))


def _checked(features: Features, index: Tensor | None, ranks: Ranks) -> tuple[UnitRows, int]:
    """Return this rank's rows and the number of all rows; a fault on one rank is raised on all, so that none waits."""
    rows, fault = None, None
    try:
        rows = UnitRows(features)
        fault = rows.fault() if index is None else _wrong_index(index, len(rows)) or rows.fault()
    except ValueError as error:
        fault = str(error)
    gathered = ranks.objects((fault, 0 if rows is None else len(rows), 0 if rows is None else rows.dim))
    for rank, (message, _, _) in enumerate(gathered):
        if message is not None:
            raise ValueError(message if ranks.size == 1 else f"rank {rank}: {message}")
    dims = {dim for _, _, dim in gathered}
    if len(dims) > 1:
        raise ValueError(f"features must have the same number of columns on every rank, not {sorted(dims)}")
    assert rows is not None
    return rows, sum(count for _, count, _ in gathered)


def _wrong_index(index: Tensor, count: int) -> str | None:
    if index.shape != (count,) or index.dtype != torch.int64:
        return f"index must be int64 of shape ({count},) as the rows, not {index.dtype} {tuple(index.shape)}"
    return f"index must be 0 or more, not {int(index.min())}" if count and int(index.min()) < 0 else None
