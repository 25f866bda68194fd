"""K-means of one level by Lloyd's steps, as matrix products over chunks of rows.

Memory beyond the rows and the prototypes, on a CPU: at most 48 MiB for the rows and scores of a chunk, 40 bytes per row
(its prototype, distance and draw) and the prototypes' sums in float64. Rows may be spread over the processes of a
group: only sums, counts and starting rows are sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.ranks import Ranks
from hirl.hierarchy.rows import UnitRows, accumulator, nearest
from hirl.seeds import mix_seed

# Starting rows are drawn in this many rounds, each far from the earlier ones: one row per round would be k-means++, a
# single round a uniform draw.
START_ROUNDS = 8
# Squared distances below this are rounding errors: such a row equals its prototype.
SAME = 1e-6


@dataclass(frozen=True)
class Prototypes:
    """Prototypes (M, D), and for a level inside another one the node (M,) of that level that each lies in."""

    rows: Tensor
    parents: Tensor | None = None


@dataclass(frozen=True)
class Clusters:
    """The result for one level."""

    prototypes: Prototypes
    index: Tensor  # (n,) the prototype of each of this rank's rows
    counts: Tensor  # (M,) the rows of each prototype, over all ranks; weighted if the rows are
    distance: float  # squared, summed over the rows of all ranks


@dataclass
class _Assigned:
    """Result of assigning all rows: this rank's rows, and the sums over all ranks."""

    index: Tensor  # (n,)
    distance: Tensor  # (n,) squared
    sums: Tensor  # (M, D)
    counts: Tensor  # (M,)
    moved: float
    total: float  # distance summed over the rows of all ranks


@dataclass
class Lloyd:
    """K-means of this rank's rows into `clusters` clusters.

    `weights` (n,): how much each row counts; without ranks only. `inside` (n,): the node of each row at a coarser
    level, whose prototypes are `coarse` (G, D). A row then belongs only to prototypes of its own node.
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

    def __post_init__(self) -> None:
        counts = self.ranks.objects(len(self.rows))
        self.N = sum(counts)
        if self.index is None:
            offset = sum(counts[: self.ranks.rank])
            self.places, self.all_places = torch.arange(offset, offset + len(self.rows)), self.N
        else:
            self.places = self.index.cpu()
            last = max(self.ranks.objects(int(self.places.max()) if len(self.places) else -1))
            if last > 8 * self.N + 1000:
                raise ValueError(f"index reaches {last} with only {self.N} rows: it holds positions in the data set")
            self.all_places = last + 1
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
        index: Tensor | None = None
        for step in itertools.count():
            found = self._assign(prototypes, before=index, step=seed[-1] * (iterations + 1) + step)
            index = found.index
            empty = found.counts == 0
            settled = step >= iterations or found.moved <= tolerance * self.N
            if settled and not empty.any():
                return Clusters(prototypes, found.index, found.counts, found.total)
            # After the last iteration only empty clusters move, each onto a row that is then at distance 0: the total
            # falls with every further step, so the loop ends.
            if step < iterations:
                prototypes = self._means(found, prototypes)
            if empty.any():
                prototypes = self._split_heavy(found, prototypes, empty, (*seed, START_ROUNDS + step))
        raise AssertionError("unreachable")

    def _nearest(self, prototypes: Prototypes) -> Iterator[tuple[slice | Tensor, Tensor, Tensor, Tensor]]:
        """Yield places, rows, the nearest prototype and its squared distance, chunk by chunk, or node by node."""
        if self.inside is None:
            yield from nearest(self.rows, prototypes.rows, spherical=self.spherical)
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
        for chunk in self.rows.chunks(len(prototypes)):
            if chunk.start >= len(places):
                return
            where = places[chunk]
            some = UnitRows(self.rows[where], name=self.rows.name)
            for part, rows, which, far in nearest(some, prototypes, spherical=self.spherical):
                yield where[part], rows, which, far

    def _assign(self, prototypes: Prototypes, *, before: Tensor | None, step: int) -> _Assigned:
        n, device = len(self.rows), self.rows.device
        index = torch.empty(n, dtype=torch.int64, device=device)
        distance = torch.empty(n, device=device)
        sums = torch.zeros(self.clusters, self.rows.dim + 1, dtype=accumulator(device), device=device)
        done = 0
        for places, some, which, far in self._nearest(prototypes):
            index[places] = which
            distance[places] = far
            # In float64 the sums are the same however the rows are split into chunks or spread over ranks.
            weighted = some.to(sums.dtype)
            if self.weights is not None:
                weighted *= self.weights[places, None]
            sums[:, :-1].index_add_(0, which, weighted)
            done += len(which)
            if self.progress is not None:
                self.progress(step, done)
        sums[:, -1] = torch.bincount(index, weights=self.weights, minlength=self.clusters)
        moved = n if before is None else (index != before).sum()
        if self.weights is not None:
            distance *= self.weights
        tail = torch.tensor([float(moved), float(distance.sum(dtype=sums.dtype))], dtype=sums.dtype, device=device)
        summed = self.ranks.sum(torch.cat((sums.flatten(), tail)))  # one message per iteration
        sums = summed[:-2].view_as(sums)
        return _Assigned(index, distance, sums[:, :-1], sums[:, -1], float(summed[-2]), float(summed[-1]))

    def _means(self, found: _Assigned, prototypes: Prototypes) -> Prototypes:
        """Return the mean of every cluster's rows; clusters without one (empty, or rows that cancel out) stay put."""
        length = torch.linalg.vector_norm(found.sums, dim=1, keepdim=True)
        divisor = length if self.spherical else found.counts[:, None]
        means = (found.sums / divisor).to(prototypes.rows.dtype)
        known = (found.counts[:, None] > 0) & (length > SAME)
        return Prototypes(torch.where(known, means, prototypes.rows), prototypes.parents)

    def _start(self, seed: tuple[int, int, int]) -> Prototypes:
        """Draw rows far from each other: in each round with probability ∝ the distance to the rows drawn before.

        Inside another level, each of its nodes starts with its own prototype, and the rest is drawn as above: a node
        has more children the more its rows are spread.
        """
        drawn = self._empty() if self.coarse is None else Prototypes(self.coarse, _count(len(self.coarse), self.coarse))
        distance = torch.ones(len(self.rows), device=self.rows.device)
        if self.coarse is not None:
            distance = self._distance(drawn)
        prototypes, first = drawn, len(drawn.rows)
        rounds = min(START_ROUNDS, self.clusters - first)
        for turn in range(rounds):
            end = first + (self.clusters - first) * (turn + 1) // rounds
            weight = distance if self.weights is None else distance * self.weights
            drawn = self._draw(weight, end - len(prototypes.rows), (*seed, turn))
            prototypes = _joined(prototypes, drawn)
            if len(drawn.rows) and end < self.clusters:
                far = self._distance(drawn)
                distance = far if turn == 0 and self.coarse is None else torch.minimum(distance, far)
        # If too few rows differ, repeats fill up; their clusters stay empty, and `_split_heavy` decides.
        missing = self.clusters - len(prototypes.rows)
        return _joined(prototypes, *[_first(prototypes)] * missing)

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

    def _split_heavy(
        self, found: _Assigned, prototypes: Prototypes, empty: Tensor, seed: tuple[int, ...]
    ) -> Prototypes:
        """Start the `empty` (M,) clusters again from rows of clusters larger than the mean, where possible."""
        count = int(empty.sum())
        heavy = (found.counts > found.counts.sum() / self.clusters)[found.index]
        for weight in (torch.where(heavy, found.distance, 0), found.distance):
            drawn = self._draw(weight, count, seed)
            if len(drawn.rows):
                which = torch.arange(count, device=empty.device) % len(drawn.rows)
                rows, parents = prototypes.rows.clone(), prototypes.parents
                rows[empty] = drawn.rows[which]
                if parents is not None and drawn.parents is not None:
                    parents = parents.clone()
                    parents[empty] = drawn.parents[which]
                return Prototypes(rows, parents)
        distinct = int((found.counts > 0).sum())
        raise ValueError(
            f"{self.rows.name} hold only {distinct} different directions ({SAME**0.5:g} or more apart) in {self.N} "
            f"rows, too few for {self.clusters} clusters: use fewer clusters, or check for repeated rows"
        )

    def _draw(self, weight: Tensor, count: int, seed: tuple[int, ...]) -> Prototypes:
        """Draw up to `count` of all ranks' rows of positive `weight` (n,), with probability ∝ weight.

        A race: a row finishes at time E/weight with E exponential, and the first `count` win. E is a function of the
        row's position in the data set, so that the winners do not depend on how the rows are spread over ranks.
        """
        generator = torch.Generator().manual_seed(mix_seed(*seed))
        exponential = torch.empty(self.all_places).exponential_(generator=generator)
        mine = exponential[self.places].to(weight.device)
        finish = torch.where(weight > SAME, mine / weight, torch.inf)
        first = finish.topk(min(count, len(finish)), largest=False)
        missing = count - len(first.values)
        times = self.ranks.joined(F.pad(first.values, (0, missing), value=torch.inf))
        rows = self.ranks.joined(F.pad(self.rows[first.indices], (0, 0, 0, missing)))
        winners = times.topk(count, largest=False)
        chosen = winners.indices[winners.values.isfinite()]
        if self.inside is None:
            return Prototypes(rows[chosen])
        parents = self.ranks.joined(F.pad(self.inside[first.indices], (0, missing)))
        return Prototypes(rows[chosen], parents[chosen])


def _count(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


def _first(prototypes: Prototypes) -> Prototypes:
    return Prototypes(prototypes.rows[:1], None if prototypes.parents is None else prototypes.parents[:1])


def _joined(*parts: Prototypes) -> Prototypes:
    parents = [part.parents for part in parts if part.parents is not None]
    return Prototypes(torch.cat([part.rows for part in parts]), torch.cat(parents) if parents else None)
