"""Hierarchical K-means: bottom-up as in Alg. 1, top-down, or started by Ward linkage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.clusters import Clusters, Prototypes, TooFewDirections
from hirl.hierarchy.draws import RowDraws
from hirl.hierarchy.levels import check_levels
from hirl.hierarchy.linked_parts import clustered_parts, rows_as_parts
from hirl.hierarchy.lloyd import Lloyd
from hirl.hierarchy.mean_directions import mean_directions
from hirl.hierarchy.path_steps import FILL_ROUNDS, PathSteps, out_of_space
from hirl.hierarchy.reduction import ReducedSpace, fit_reduction
from hirl.hierarchy.rows import Features, UnitRows
from hirl.hierarchy.tree import PrototypeTree
from hirl.hierarchy.ward import ward_merges
from hirl.ranks import Ranks

if TYPE_CHECKING:
    from hirl.hierarchy.builder import HierarchicalKMeans

TreeProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (level, step, rows done in that step) after every chunk; steps count on over restarts."""

# With a larger share of empty leaves, updating an earlier tree has failed; over the epochs of a run it was below .02.
MOST_EMPTY = 0.05

Order: TypeAlias = Literal["bottom-up", "top-down", "ward"]


def kmeans_tree(
    settings: HierarchicalKMeans,
    features: Features,
    levels: Sequence[int],
    *,
    seed: int,
    init: PrototypeTree | None,
    index: Tensor | None,
    group: dist.ProcessGroup | None,
    progress: TreeProgress | None,
) -> PrototypeTree:
    """Build the tree that `settings` describes; `TreeBuilder` explains the other arguments.

    Starting rows are drawn by their position in the data set (`index`), so that the tree does not depend on the order
    of the rows or on the rank that holds them. K-means leaves no cluster empty; steps over paths may empty a leaf.
    """
    ranks = Ranks(group)
    index = None if index is None else torch.as_tensor(index)
    rows, N = _check_features(features, index, ranks)
    sizes = check_levels(levels, N)
    if seed < 0:
        raise ValueError(f"seed is {seed}, but must be at least 0")
    if init is not None and (init.levels != sizes or init.dim != rows.dim):
        raise ValueError(
            f"init has levels {init.levels} of dimension {init.dim}; expected {sizes} of dimension {rows.dim}"
        )
    space = None
    clustered = rows
    if settings.centre or settings.whiten or (settings.components is not None and settings.components < rows.dim):
        space = fit_reduction(
            rows, ranks, centre=settings.centre, components=settings.components, whiten=settings.whiten
        )
        clustered = space.project(rows)
        init = None if init is None else _project_tree(init, space)
    construction = _TreeConstruction(settings, clustered, sizes, index, ranks, seed, init, progress)
    tree = construction.bottom_up() if settings.order == "bottom-up" else construction.by_path()
    return tree if space is None else out_of_space(tree, space, rows, ranks, default=_unit(space.axes[:, 0]))


@dataclass
class _TreeConstruction:
    """Builds the levels of one tree."""

    settings: HierarchicalKMeans
    rows: UnitRows
    sizes: tuple[int, ...]
    index: Tensor | None
    ranks: Ranks
    seed: int
    init: PrototypeTree | None
    progress: TreeProgress | None

    def bottom_up(self) -> PrototypeTree:
        """Cluster the rows, then the prototypes of each level for the next."""
        clusters = self._cluster_rows(0)
        leaves, counts = clusters.index, clusters.counts
        prototypes, parents = [clusters.prototypes.rows], []
        for level in range(1, len(self.sizes)):
            clusters = self._run_starts(
                Lloyd(
                    UnitRows(prototypes[-1], name=f"prototypes of level {level - 1}"),
                    None,
                    self.sizes[level],
                    self.settings.spherical,
                    Ranks(None),
                    self._level_progress(level),
                    counts if self.settings.weighted else None,
                ),
                level,
            )
            # Every rank computes the upper levels; on GPUs sums may differ in the last bit: the first rank's are used.
            prototypes.append(self.ranks.broadcast(clusters.prototypes.rows))
            parents.append(self.ranks.broadcast(clusters.index))
            counts = counts.new_zeros(self.sizes[level]).index_add_(0, parents[-1], counts)
        return self._tree(prototypes, parents, leaves)

    def by_path(self) -> PrototypeTree:
        """Build the tree top-down or by Ward linkage, and settle all levels together.

        Each row goes to the leaf of the path nearest to it, which may lie in another node than the one it was put in,
        and every node becomes the mean direction of its rows. A tree of earlier features is only updated, which takes a
        fifth of the time. If that leaves too many leaves empty, all levels are clustered again, top-down from the
        earlier prototypes: nodes that still fit keep their number, which the heads have learnt.
        """
        settles, path_steps = self.settings.spherical and len(self.sizes) > 1, self.settings.path_steps
        paths, draws = PathSteps(self.rows, self.ranks), RowDraws(self.rows, self.index, self.ranks)
        seed = (self.seed, len(self.sizes))  # the levels have (seed, level)
        if settles and path_steps and self.init is not None and _every_node_has_a_child(self.init):
            tree = paths.settle(replace(self.init.to(self.rows.device), by_path=True), path_steps, self.progress)
            if paths.empty_leaves(tree) <= MOST_EMPTY * self.sizes[0]:
                return paths.fill_empty_leaves(tree, draws, seed)
        links = self.settings.order == "ward" and self.init is None and draws.N > 1
        tree = self._link(draws) if links else self._split(len(self.sizes))
        if not settles:
            return tree
        # Nodes of an earlier tree keep their numbers. Linkage finds the groups, but may leave a row alone without need.
        swaps = None if self.init is not None else (*seed, 2 * FILL_ROUNDS)
        max_rows = 1 if links else None
        settled = paths.settle(replace(tree, by_path=True), path_steps, swaps=swaps, max_rows=max_rows)
        return paths.fill_empty_leaves(settled, draws, seed)

    def _split(
        self, levels: int, above: Sequence[Tensor] = (), edges: Sequence[Tensor] = (), nodes: Tensor | None = None
    ) -> PrototypeTree:
        """Split top-down from level `levels` − 1 to 0.

        `above`, `edges`: prototypes and parents of coarser levels that exist; `nodes` (n,): each row's node there.
        """
        prototypes, parents = list(above), list(edges)
        for level in reversed(range(levels)):
            clusters = self._cluster_rows(level, inside=nodes, coarse=prototypes[0] if prototypes else None)
            nodes = clusters.index
            prototypes.insert(0, clusters.prototypes.rows)
            if clusters.prototypes.parents is not None:
                parents.insert(0, clusters.prototypes.parents)
        assert nodes is not None
        return self._tree(prototypes, parents, nodes)

    def _link(self, draws: RowDraws) -> PrototypeTree:
        """Join rows, or small clusters of many rows, into the coarser levels, and split these into the finer ones.

        With `averaged`, linkage compares averages over neighbours; prototypes are means of the rows alone.
        """
        exact, averaged = self.settings.linked >= draws.N, self.settings.averaged
        if exact:
            parts = rows_as_parts(draws)
        else:
            seed = self.seed, len(self.sizes) + 1
            parts = clustered_parts(draws, self.settings, seed=seed, progress=self._level_progress(0))
        distinct = parts.count_distinct()
        finest = sum(size > (distinct if exact else distinct // 2) for size in self.sizes)  # that is joined
        if exact and finest:
            raise TooFewDirections(self.rows.name, distinct, draws.N, self.sizes[0])
        if finest == len(self.sizes):
            return self._split(finest)
        merges = ward_merges(parts.smoothed_directions(averaged) if averaged else parts.means, parts.counts)
        # Every rank joins the same parts; on GPUs sums may differ in the last bit: the first rank's cuts are used.
        sizes = self.sizes[finest:]
        cuts = [self.ranks.broadcast(merges.cut(size)) for size in sizes]
        parents = [
            torch.empty(size, dtype=torch.int64, device=fine.device).scatter_(0, fine, coarse)
            for size, (fine, coarse) in zip(sizes, pairwise(cuts), strict=False)
        ]
        nodes = cuts[0][parts.of_row]
        default = _unit(parts.means[0])
        prototypes = mean_directions(self.rows, nodes, sizes, parents, self.ranks, default=default)
        return self._split(finest, prototypes, parents, nodes)

    def _cluster_rows(self, level: int, *, inside: Tensor | None = None, coarse: Tensor | None = None) -> Clusters:
        """Cluster all rows into a level, or with `inside` those of each node of the next coarser one; see `Lloyd`."""
        lloyd = Lloyd(
            self.rows,
            self.index,
            self.sizes[level],
            self.settings.spherical,
            self.ranks,
            self._level_progress(level),
            inside=inside,
            coarse=coarse,
        )
        return self._run_starts(lloyd, level)

    def _run_starts(self, lloyd: Lloyd, level: int) -> Clusters:
        """Return the best result of all starts, the first of which is this level of `init`."""
        starts = [self._first_start(level, lloyd), *[None] * (self.settings.restarts - 1)]
        iterations, tolerance = self.settings.iterations, self.settings.tolerance
        results = (
            lloyd.run(start, iterations=iterations, tolerance=tolerance, seed=(self.seed, level, restart))
            for restart, start in enumerate(starts)
        )
        return min(results, key=lambda clusters: clusters.distance)

    def _level_progress(self, level: int) -> Callable[[int, int], None] | None:
        return None if self.progress is None else partial(self.progress, level)

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
        units = prototypes if self.settings.spherical else [F.normalize(level, dim=1) for level in prototypes]
        return PrototypeTree(prototypes=tuple(units), parents=tuple(parents), leaves=leaves)


def _project_tree(tree: PrototypeTree, space: ReducedSpace) -> PrototypeTree:
    """Return an earlier tree with its prototypes in the reduced space of the current features."""
    nodes = (space.project(UnitRows(level))[:] for level in tree.prototypes)
    return replace(tree, prototypes=tuple(nodes), reduced=None)


def _unit(direction: Tensor) -> Tensor:
    return F.normalize(direction.float(), dim=0)


def _every_node_has_a_child(tree: PrototypeTree) -> bool:
    return all(len(parents.unique()) == size for parents, size in zip(tree.parents, tree.levels[1:], strict=True))


def _check_features(features: Features, index: Tensor | None, ranks: Ranks) -> tuple[UnitRows, int]:
    """Return this rank's rows and the number of all rows; a fault on one rank is raised on all, so that none waits."""
    rows, fault = None, None
    try:
        rows = UnitRows(features)
        fault = rows.fault() if index is None else _index_fault(index, len(rows)) or rows.fault()
    except ValueError as error:
        fault = str(error)
    gathered = ranks.gather_objects((fault, 0 if rows is None else len(rows), 0 if rows is None else rows.dim))
    for rank, (message, _, _) in enumerate(gathered):
        if message is not None:
            raise ValueError(message if ranks.size == 1 else f"rank {rank}: {message}")
    dims = {dim for _, _, dim in gathered}
    if len(dims) > 1:
        raise ValueError(f"features must have the same number of columns on every rank, not {sorted(dims)}")
    assert rows is not None
    return rows, sum(count for _, count, _ in gathered)


def _index_fault(index: Tensor, count: int) -> str | None:
    if index.shape != (count,) or index.dtype != torch.int64:
        return f"index must be int64 of shape ({count},) as the rows, not {index.dtype} {tuple(index.shape)}"
    return f"index is {int(index.min())}, but must be 0 or more" if count and int(index.min()) < 0 else None
