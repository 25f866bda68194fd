"""Lloyd's steps over paths, which fit all levels of a tree to the rows together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hirl.hierarchy.draws import RowDraws
from hirl.hierarchy.mean_directions import mean_directions
from hirl.hierarchy.nearest import NearestSteps
from hirl.hierarchy.reduction import ReducedSpace
from hirl.hierarchy.rows import Features, UnitRows
from hirl.hierarchy.swaps import swap_leaves
from hirl.hierarchy.tree import PrototypeTree
from hirl.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Rounds in which empty leaves are filled. One is enough, unless the rows of different paths nearly coincide.
FILL_ROUNDS = 5
# Leaves are swapped before each of this many last steps; the second round makes the few swaps that the first missed.
SWAP_ROUNDS = 2
UPDATE_STEPS = 2  # of a tree that gets other images


@dataclass
class PathSteps:
    """Fits trees to rows, each of which belongs to the path nearest to it over all levels."""

    rows: UnitRows
    ranks: Ranks

    def settle(
        self,
        tree: PrototypeTree,
        steps: int,
        progress: Callable[[int, int, int], None] | None = None,
        *,
        swaps: tuple[int, ...] | None = None,
        max_rows: int | None = None,
    ) -> PrototypeTree:
        """Give each row the leaf of the nearest path, and each node the mean direction of its rows.

        With `swaps`, a seed, leaves are swapped before the last steps, else parents stay; `max_rows`: as `swap_leaves`.
        """
        find, leaves = NearestSteps(self.rows), None
        for step in range(steps):
            leaves = self._nearest_paths(tree, find, leaves)
            if progress is not None:
                progress(0, step, len(self.rows))
            if swaps is not None and step >= steps - SWAP_ROUNDS:
                swapped, parents = swap_leaves(
                    self.rows, leaves, tree.parents[0], self.ranks, (*swaps, step), max_rows=max_rows
                )
                tree = self._with_means(replace(tree, parents=(parents, *tree.parents[1:])), swapped)
                if swapped is not leaves:
                    leaves = None  # the leaves differ: every row is compared with all of them
            else:
                tree = self._with_means(tree, leaves)
        return replace(tree, leaves=self._nearest_paths(tree, find, leaves))

    def fill_empty_leaves(self, tree: PrototypeTree, draws: RowDraws, seed: tuple[int, ...]) -> PrototypeTree:
        """Give each empty leaf a part of the rows of a leaf larger than the mean, and assign all rows again.

        The empty leaf becomes a sibling of that leaf; if all children of its node are empty, the node moves with it.
        """
        for turn in range(FILL_ROUNDS):
            counts = self._counts(tree)
            free = (counts == 0).nonzero().flatten()
            if not len(free):
                break
            weight = self._distance(tree) * (counts > counts.sum() / len(counts))[tree.leaves]
            rows, of = draws.draw_weighted(weight, len(free), (*seed, 2 * turn), tree.leaves)
            if not len(rows) or of is None:
                break
            free = free[: len(rows)]
            # The large leaf also starts again from one of its rows: its mean would keep most of them.
            others = draws.draw_one_per_group(tree.leaves, tree.levels[0], (*seed, 2 * turn + 1))
            leaves = tree.leaves.clone()
            for leaf in of.unique().tolist():
                places = (tree.leaves == leaf).nonzero().flatten()
                starts = torch.cat((others[leaf : leaf + 1], rows[of == leaf]))
                parts = torch.cat((of.new_tensor([leaf]), free[of == leaf]))
                for chunk in places.split(self.rows.at_once(self.rows.dim)):
                    leaves[chunk] = parts[(self.rows[chunk] @ starts.T).argmax(1)]
            tree = self._with_means(replace(tree, parents=_move_leaves(tree.parents, counts, free, of)), leaves)
            tree = replace(tree, leaves=tree.assign_rows(self.rows))
        return tree

    def _nearest_paths(self, tree: PrototypeTree, find: NearestSteps, before: Tensor | None) -> Tensor:
        """As `tree.assign_rows`, faster if the rows have been assigned `before` (n,)."""
        leaves = torch.empty(len(self.rows), dtype=torch.int64, device=self.rows.device)
        for part in find(tree.targets(), before):
            leaves[part.chunk] = part.which
        return leaves

    def empty_leaves(self, tree: PrototypeTree) -> int:
        return int((self._counts(tree) == 0).sum())

    def _with_means(self, tree: PrototypeTree, leaves: Tensor) -> PrototypeTree:
        """Return the tree with the mean direction of each node's rows, of which `leaves` (n,) are this rank's."""
        means = mean_directions(self.rows, leaves, tree.levels, tree.parents, self.ranks, default=tree.prototypes)
        return replace(tree, prototypes=means)

    def _counts(self, tree: PrototypeTree) -> Tensor:
        """Return the rows (M_1,) of each leaf, over all ranks."""
        return self.ranks.sum(torch.bincount(tree.leaves, minlength=tree.levels[0]))

    def _distance(self, tree: PrototypeTree) -> Tensor:
        """Return the squared distance (n,) of this rank's rows to their leaves."""
        distance = torch.empty(len(self.rows), device=self.rows.device)
        for chunk in self.rows.chunks(self.rows.dim):
            distance[chunk] = (self.rows[chunk] - tree.prototypes[0][tree.leaves[chunk]]).square().sum(1)
        return distance


def _move_leaves(parents: tuple[Tensor, ...], counts: Tensor, leaves: Tensor, to: Tensor) -> tuple[Tensor, ...]:
    """Return the parents after empty `leaves` (n,) have become siblings of the leaves `to` (n,).

    `counts` (M_1,) are the leaves' rows. If a leaf is its node's last child, the node moves with it.
    """
    moved = []
    for above in parents:
        stays = _first_child(above, counts)[leaves]
        new = above.clone()
        new[leaves[~stays]] = above[to[~stays]]
        moved.append(new)
        counts = counts.new_zeros(int(above.max()) + 1).index_add_(0, above, counts)
        leaves, to = above[leaves[stays]], above[to[stays]]  # nodes of the next level
    return tuple(moved)


def _first_child(parents: Tensor, counts: Tensor) -> Tensor:
    """Return which nodes (M,) are the first child of their parent, children with rows coming before empty ones."""
    order = torch.arange(len(parents), device=parents.device) - len(parents) * (counts > 0)
    first = torch.full((int(parents.max()) + 1,), len(parents), device=parents.device)
    return order == first.scatter_reduce(0, parents, order, "amin")[parents]


def update_tree(tree: PrototypeTree, features: Features) -> PrototypeTree:
    """Return the tree with the rows of `features` (n, D) as its images, some of which may be new.

    Every node keeps its number and its parent, and moves towards its images by steps over paths, in the space that the
    tree was built in. A node that has lost its images stays empty where it was: refilling it would change its meaning.
    """
    rows = UnitRows(features)
    fault = rows.fault()
    if fault is not None:
        raise ValueError(fault)
    space, alone = tree.reduced, Ranks(None)
    clustered = rows if space is None else space.project(rows)
    inner = tree if space is None else replace(tree, prototypes=space.prototypes, reduced=None)
    settled = PathSteps(clustered, alone).settle(replace(inner, by_path=True), UPDATE_STEPS)
    return settled if space is None else out_of_space(settled, space, rows, alone, default=tree.prototypes)


def out_of_space(
    tree: PrototypeTree, space: ReducedSpace, rows: UnitRows, ranks: Ranks, *, default: Tensor | Sequence[Tensor]
) -> PrototypeTree:
    """Return a tree over rows in a reduced space as one over the rows themselves; see `mean_directions`."""
    nodes = mean_directions(rows, tree.leaves, tree.levels, tree.parents, ranks, default=default)
    return replace(tree, prototypes=nodes, reduced=replace(space, prototypes=tree.prototypes))
