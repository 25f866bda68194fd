"""K-means of one level by Lloyd's steps, as matrix products over chunks of rows.

Memory beyond the rows and the prototypes, on a CPU: at most 61 MiB for the rows and scores of a chunk, 40 bytes per row
(its prototype, distance and draw; 48 with the bounds of many prototypes) and the prototypes' sums in float64, twice.
Rows may be spread over the processes of a group: only sums, counts and starting rows are sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hirl.hierarchy.clusters import Clusters, Prototypes, TooFewDirections
from hirl.hierarchy.draws import EQUAL_DISTANCE, RowDraws
from hirl.hierarchy.nearest import NearestSteps, nearest
from hirl.hierarchy.rows import UnitRows, accumulator
from hirl.ranks import Ranks

# Starting rows are drawn in this many rounds, each far from the earlier ones: one row per round would be k-means++, a
# single round a uniform draw.
START_ROUNDS = 8
# A one-row child is redundant if its squared distance to the nearest sibling is at most this multiple of that in large
# clusters. On features without clusters the multiple is about 1.5; of an outlier it is 10.
OUTLIER = 3.0
# Redundant children are drawn again this many times per level.
REDRAWS = 3


@dataclass
class _Assignment:
    """Result of assigning all rows: this rank's rows, and the sums over all ranks."""

    index: Tensor  # (n,)
    distance: Tensor  # (n,) squared
    sums: Tensor  # (M, D)
    own_sums: Tensor  # (M, D), of this rank's rows alone: the next step goes on with them
    counts: Tensor  # (M,)
    moved: float
    total: float  # distance summed over the rows of all ranks


@dataclass
class Lloyd:
    """K-means of this rank's rows into `clusters` clusters.

    `weights` (n,): how much each row counts; without ranks only. `inside` (n,): the node of each row at a coarser
    level, whose prototypes are `coarse` (G, D). A row then belongs only to prototypes of its own node.
    `may_be_empty`: clusters may be left without rows if there are more of them than different rows.
    """

    rows: UnitRows
    index: Tensor | None
    clusters: int
    spherical: bool
    ranks: Ranks
    progress: Callable[[int, int], None] | None
    weights: Tensor | None = None
    inside: Tensor | None = None
    coarse: Tensor | None = None
    may_be_empty: bool = False

    def __post_init__(self) -> None:
        self.draws = RowDraws(self.rows, self.index, self.ranks)
        self.N = self.draws.N
        self._steps = NearestSteps(self.rows, spherical=self.spherical)
        if self.inside is not None:
            assert self.coarse is not None
            order = self.inside.argsort(stable=True)
            sizes = torch.bincount(self.inside, minlength=len(self.coarse)).tolist()
            self._rows_inside = order.split(sizes)  # by node: its rows

    def run(
        self, start: Prototypes | None, *, iterations: int, tolerance: float, seed: tuple[int, int, int]
    ) -> Clusters:
        """Iterate from `start`, or from rows drawn far from each other."""
        prototypes = self._start(seed) if start is None else Prototypes(start.rows.clone(), start.parents)
        redraws = min(REDRAWS, iterations // 2) if start is None else 0
        assignment: _Assignment | None = None
        for step in itertools.count():
            assignment = self._assign(prototypes, before=assignment, step=seed[-1] * (iterations + 1) + step)
            empty = assignment.counts == 0
            settled = step >= iterations or assignment.moved <= tolerance * self.N
            further = (*seed, START_ROUNDS + step)
            if step < redraws:
                # Before the first means: all prototypes are rows, so that a new one has the same chance as the others.
                redundant = self._redundant(assignment, prototypes)
                some = empty | redundant
                split = self._split_heavy(assignment, prototypes, some, further) if redundant.any() else None
                if split is not None:
                    prototypes = split
                    continue
                redraws = 0
            result = Clusters(prototypes, assignment.index, assignment.counts, assignment.total)
            if settled and not empty.any():
                return result
            # After the last iteration only empty clusters move, each onto a row that is then at distance 0: the total
            # falls with every further step, so the loop ends.
            if step < iterations:
                prototypes = self._means(assignment, prototypes)
            if empty.any():
                split = self._split_heavy(assignment, prototypes, empty, further)
                if split is None and self.may_be_empty:
                    return result
                if split is None:
                    raise self._too_few(assignment, prototypes)
                prototypes = split
        raise AssertionError("unreachable")

    def _nearest(
        self, prototypes: Prototypes, before: Tensor | None
    ) -> Iterator[tuple[slice | Tensor, Tensor, Tensor, Tensor]]:
        """Yield places, rows, the nearest prototype and its squared distance, chunk by chunk, or node by node."""
        if self.inside is None:
            yield from self._steps(prototypes.rows, before)
            return
        assert prototypes.parents is not None
        assert self.coarse is not None
        order = prototypes.parents.argsort(stable=True)
        children = order.split(torch.bincount(prototypes.parents, minlength=len(self.coarse)).tolist())
        for places, own in zip(self._rows_inside, children, strict=True):
            for chunk, some, which, far in self._of_node(places, prototypes.rows[own]):
                yield chunk, some, own[which], far

    def _of_node(self, places: Tensor, prototypes: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """As `_nearest`, of the rows at `places` (n,) and the prototypes of their node, copied in chunks."""
        for where in places.split(self.rows.at_once(len(prototypes))):
            some = UnitRows(self.rows[where], name=self.rows.name)
            for part, rows, which, far in nearest(some, prototypes, spherical=self.spherical):
                yield where[part], rows, which, far

    def _assign(self, prototypes: Prototypes, *, before: _Assignment | None, step: int) -> _Assignment:
        n, device = len(self.rows), self.rows.device
        index = torch.empty(n, dtype=torch.int64, device=device)
        distance = torch.empty(n, device=device)
        dtype = accumulator(device)
        if before is None:
            sums = torch.zeros(self.clusters, self.rows.dim, dtype=dtype, device=device)
        else:
            sums = before.own_sums
        moved = done = 0
        for places, some, which, far in self._nearest(prototypes, None if before is None else before.index):
            index[places] = which
            distance[places] = far
            # Only rows that move change the sums. In float64 these are the same in whatever order rows come and go.
            new = slice(None) if before is None else (which != before.index[places]).nonzero().flatten()
            weighted = some[new].to(dtype)
            if self.weights is not None:
                weighted *= self.weights[places][new, None]
            sums.index_add_(0, which[new], weighted)
            if before is not None:
                sums.index_add_(0, before.index[places][new], weighted, alpha=-1)
            moved += len(weighted)
            done += len(which)
            if self.progress is not None:
                self.progress(step, done)
        counts = torch.bincount(index, weights=self.weights, minlength=self.clusters)
        if self.weights is not None:
            distance *= self.weights
        tail = torch.tensor([float(moved), float(distance.sum(dtype=dtype))], dtype=dtype, device=device)
        summed = self.ranks.sum(torch.cat((sums.flatten(), counts.to(dtype), tail)))  # one message per iteration
        parts = summed.split((sums.numel(), self.clusters, 2))
        total = [float(value) for value in parts[2]]
        return _Assignment(index, distance, parts[0].view_as(sums), sums, parts[1], *total)

    def _means(self, assignment: _Assignment, prototypes: Prototypes) -> Prototypes:
        """Return the mean of every cluster's rows; clusters without one (empty, or rows that cancel out) stay put."""
        length = torch.linalg.vector_norm(assignment.sums, dim=1, keepdim=True)
        divisor = length if self.spherical else assignment.counts[:, None]
        means = (assignment.sums / divisor).to(prototypes.rows.dtype)
        known = (assignment.counts[:, None] > 0) & (length > EQUAL_DISTANCE)
        return Prototypes(torch.where(known, means, prototypes.rows), prototypes.parents)

    def _start(self, seed: tuple[int, int, int]) -> Prototypes:
        """Draw rows far from each other: in each round with probability ∝ the distance to the rows drawn before.

        Inside another level, the first round draws one row of each of its nodes, and the rest is drawn as above: a node
        has more children the more its rows are spread. No child starts at the prototype of its node: that lies nearer
        to nearly all rows of the node than another of its rows does, so the child would keep most of them and leave one
        row to each of the others.
        """
        prototypes = self._empty()
        if self.coarse is not None and self.inside is not None:
            first_rows = self.draws.draw_one_per_group(self.inside, len(self.coarse), (*seed, 0))
            prototypes = Prototypes(first_rows, torch.arange(len(self.coarse), device=self.rows.device))
        first, turns = len(prototypes.rows), range(0 if self.coarse is None else 1, START_ROUNDS)
        distance = self._distance(prototypes) if first else torch.ones(len(self.rows), device=self.rows.device)
        rounds = min(len(turns), self.clusters - first)
        for turn in turns[:rounds]:
            end = first + (self.clusters - first) * (turn - turns[0] + 1) // rounds
            weight = distance if self.weights is None else distance * self.weights
            missing = end - len(prototypes.rows)
            drawn = Prototypes(*self.draws.draw_weighted(weight, missing, (*seed, turn), self.inside))
            if len(drawn.rows) and end < self.clusters:
                far = self._distance(drawn)
                distance = torch.minimum(distance, far) if len(prototypes.rows) else far
            prototypes = prototypes.concatenate(drawn)
        # If too few rows differ, repeats fill up; their clusters stay empty, and `_split_heavy` decides.
        missing = self.clusters - len(prototypes.rows)
        return prototypes.concatenate(*[prototypes.first()] * missing)

    def _empty(self) -> Prototypes:
        return Prototypes(torch.empty(0, self.rows.dim, device=self.rows.device))

    def _distance(self, prototypes: Prototypes) -> Tensor:
        """Return the squared distance (n,) of each row to the nearest prototype it may belong to; ∞ without one."""
        distance = torch.full((len(self.rows),), torch.inf, device=self.rows.device)
        parents = prototypes.parents
        if parents is None:  # rows, which are of unit length even if prototypes are not
            for chunk, _, _, far in nearest(self.rows, prototypes.rows):
                distance[chunk] = far
        else:
            for node in parents.unique().tolist():
                for places, _, _, far in self._of_node(self._rows_inside[node], prototypes.rows[parents == node]):
                    distance[places] = far
        return distance

    def _redundant(self, assignment: _Assignment, prototypes: Prototypes) -> Tensor:
        """Return which children (M,) hold a single row that is neither an outlier nor a duplicate.

        Only inside another level, where each node has few starting rows. A part of a cluster larger than the mean makes
        a better child.
        """
        redundant = torch.zeros(self.clusters, device=self.rows.device)
        if self.inside is None or prototypes.parents is None:
            return redundant > 0
        single = assignment.counts == 1
        heavy = self._heavy(assignment)
        sums = torch.stack((assignment.distance[heavy].sum(dtype=assignment.sums.dtype), heavy.sum()))
        total, count = self.ranks.sum(sums).tolist()
        far = max(OUTLIER * total / max(count, 1), EQUAL_DISTANCE)
        lonely = single[assignment.index].nonzero().flatten()  # this rank's rows
        for node in self.inside[lonely].unique().tolist():
            siblings = prototypes.rows[(prototypes.parents == node) & ~single]
            if len(siblings):
                own = lonely[self.inside[lonely] == node]
                for places, _, _, distance in self._of_node(own, siblings):
                    redundant[assignment.index[places]] = (distance <= far).float()
        return self.ranks.sum(redundant) > 0

    def _heavy(self, assignment: _Assignment) -> Tensor:
        """Return which rows (n,) are in clusters larger than the mean."""
        return (assignment.counts > assignment.counts.sum() / self.clusters)[assignment.index]

    def _split_heavy(
        self, assignment: _Assignment, prototypes: Prototypes, some: Tensor, seed: tuple[int, ...]
    ) -> Prototypes | None:
        """Start some (M,) clusters again from rows of clusters larger than the mean, where possible.

        None if every row equals its prototype.
        """
        count = int(some.sum())
        for weight in (torch.where(self._heavy(assignment), assignment.distance, 0), assignment.distance):
            drawn, of = self.draws.draw_weighted(weight, count, seed, assignment.index)
            if len(drawn) and of is not None:
                which = torch.arange(count, device=some.device) % len(drawn)
                rows, parents = prototypes.rows.clone(), prototypes.parents
                rows[some] = drawn[which]
                if parents is not None:
                    parents = parents.clone()
                    parents[some] = parents[of[which]]
                return Prototypes(rows, parents)
        return None

    def _too_few(self, assignment: _Assignment, prototypes: Prototypes) -> TooFewDirections:
        """Return the error for rows that all equal one of fewer prototypes than there are clusters."""
        used = prototypes.rows[assignment.counts > 0].to(accumulator(self.rows.device))
        count = 0
        while len(used):  # drop all that equal the first one
            used = used[(used - used[0]).square().sum(1) >= EQUAL_DISTANCE]
            count += 1
        return TooFewDirections(self.rows.name, count, self.N, self.clusters)
