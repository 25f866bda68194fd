"""Hierarchical K-means (Alg. 1): prototypes of the features, then prototypes of the prototypes, level by level.

Lloyd's steps run as matrix products over chunks of rows. Memory beyond the features and the prototypes, on a CPU: at
most 48 MiB for the rows and scores of a chunk, 40 bytes per row (its prototype, distance and draw) and the prototypes'
sums in float64. Rows may be spread over the processes of a group: only sums, counts and starting rows are sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.levels import check_levels
from hirl.hierarchy.ranks import Ranks
from hirl.hierarchy.rows import Features, UnitRows, accumulator, nearest
from hirl.hierarchy.tree import PrototypeTree
from hirl.seeds import mix_seed

TreeProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (level, step, rows done in that step) after every chunk; steps count on over restarts."""

# Starting rows are drawn in this many rounds, each far from the earlier ones: one row per round would be k-means++, a
# single round a uniform draw.
START_ROUNDS = 8
# Squared distances below this are rounding errors: such a row equals its prototype.
SAME = 1e-6


def kmeans_tree(
    features: Features,
    levels: Sequence[int],
    *,
    iterations: int,
    restarts: int,
    tolerance: float,
    spherical: bool,
    seed: int,
    init: PrototypeTree | None,
    index: Tensor | None,
    group: dist.ProcessGroup | None,
    progress: TreeProgress | None,
) -> PrototypeTree:
    """Build the tree of `HierarchicalKMeans`, which explains the arguments, states their defaults and checks them.

    Starting rows are drawn by their position in the data set (`index`), so that the tree does not depend on the order
    of the rows or on the rank that holds them. No cluster is left empty.
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

    prototypes: list[Tensor] = []
    members: list[Tensor] = []
    alone = Ranks(None)
    for level, size in enumerate(sizes):
        lloyd = _Lloyd(
            rows=rows if level == 0 else UnitRows(prototypes[-1], name=f"prototypes of level {level - 1}"),
            index=index if level == 0 else None,
            clusters=size,
            spherical=spherical,
            ranks=ranks if level == 0 else alone,
            progress=None if progress is None else partial(progress, level),
        )
        best: _Clusters | None = None
        for restart in range(restarts):
            start = init.prototypes[level].to(rows.device).float() if init is not None and restart == 0 else None
            found = lloyd.run(start, iterations=iterations, tolerance=tolerance, seed=(seed, level, restart))
            if best is None or found.distance < best.distance:
                best = found
        assert best is not None
        # Every rank computes the upper levels; on GPUs sums may differ in the last bit, so the first rank's are used.
        prototypes.append(best.prototypes if level == 0 else ranks.first(best.prototypes))
        members.append(best.index if level == 0 else ranks.first(best.index))
    return PrototypeTree(
        prototypes=tuple(F.normalize(level, dim=1) for level in prototypes) if not spherical else tuple(prototypes),
        parents=tuple(members[1:]),
        leaves=members[0],
    )


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


@dataclass(frozen=True)
class _Clusters:
    prototypes: Tensor  # (M, D)
    index: Tensor  # (n,) the prototype of each of this rank's rows
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
class _Lloyd:
    """K-means of one level."""

    rows: UnitRows
    index: Tensor | None
    clusters: int
    spherical: bool
    ranks: Ranks
    progress: Callable[[int, int], None] | None

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

    def run(self, start: Tensor | None, *, iterations: int, tolerance: float, seed: tuple[int, int, int]) -> _Clusters:
        prototypes = self._start(seed) if start is None else start.clone()
        index: Tensor | None = None
        for step in itertools.count():
            found = self._assign(prototypes, before=index, step=seed[-1] * (iterations + 1) + step)
            index = found.index
            empty = found.counts == 0
            settled = step >= iterations or found.moved <= tolerance * self.N
            if settled and not empty.any():
                return _Clusters(prototypes, found.index, found.total)
            # After the last iteration only empty clusters move, each onto a row that is then at distance 0: the total
            # falls with every further step, so the loop ends.
            if step < iterations:
                prototypes = self._means(found, prototypes)
            if empty.any():
                prototypes[empty] = self._split_heavy(found, int(empty.sum()), (*seed, START_ROUNDS + step))
        raise AssertionError("unreachable")

    def _assign(self, prototypes: Tensor, *, before: Tensor | None, step: int) -> _Assigned:
        n, device = len(self.rows), self.rows.device
        index = torch.empty(n, dtype=torch.int64, device=device)
        distance = torch.empty(n, device=device)
        sums = torch.zeros(self.clusters, self.rows.dim + 1, dtype=accumulator(device), device=device)
        for chunk, some, which, far in nearest(self.rows, prototypes, spherical=self.spherical):
            index[chunk] = which
            distance[chunk] = far
            # In float64 the sums are the same however the rows are split into chunks or spread over ranks.
            sums[:, :-1].index_add_(0, which, some.to(sums.dtype))
            if self.progress is not None:
                self.progress(step, chunk.stop)
        sums[:, -1] = torch.bincount(index, minlength=self.clusters)
        moved = n if before is None else (index != before).sum()
        tail = torch.tensor([float(moved), float(distance.sum(dtype=sums.dtype))], dtype=sums.dtype, device=device)
        summed = self.ranks.sum(torch.cat((sums.flatten(), tail)))  # one message per iteration
        sums = summed[:-2].view_as(sums)
        return _Assigned(index, distance, sums[:, :-1], sums[:, -1], float(summed[-2]), float(summed[-1]))

    def _means(self, found: _Assigned, prototypes: Tensor) -> Tensor:
        """Return the mean of every cluster's rows; clusters without one (empty, or rows that cancel out) stay put."""
        length = torch.linalg.vector_norm(found.sums, dim=1, keepdim=True)
        divisor = length if self.spherical else found.counts[:, None]
        means = (found.sums / divisor).to(prototypes.dtype)
        return torch.where((found.counts[:, None] > 0) & (length > SAME), means, prototypes)

    def _start(self, seed: tuple[int, int, int]) -> Tensor:
        """Draw rows far from each other: in each round with probability ∝ the distance to the rows drawn before."""
        distance = torch.ones(len(self.rows), device=self.rows.device)
        prototypes = torch.empty(0, self.rows.dim, device=self.rows.device)
        rounds = min(START_ROUNDS, self.clusters)
        for turn in range(rounds):
            end = self.clusters * (turn + 1) // rounds
            drawn = self._draw(distance, end - len(prototypes), (*seed, turn))
            prototypes = torch.cat((prototypes, drawn))
            if len(drawn) and end < self.clusters:
                for chunk, _, _, far in nearest(self.rows, drawn):
                    distance[chunk] = far if turn == 0 else torch.minimum(distance[chunk], far)
        # If too few rows differ, repeats fill up; their clusters stay empty, and `_split_heavy` decides.
        return torch.cat((prototypes, prototypes[:1].expand(self.clusters - len(prototypes), -1)))

    def _split_heavy(self, found: _Assigned, count: int, seed: tuple[int, ...]) -> Tensor:
        """Draw rows (count, D) to start empty clusters from, of clusters larger than the mean where possible."""
        heavy = (found.counts > self.N / self.clusters)[found.index]
        for weight in (torch.where(heavy, found.distance, 0), found.distance):
            drawn = self._draw(weight, count, seed)
            if len(drawn):
                return drawn[torch.arange(count, device=drawn.device) % len(drawn)]
        distinct = int((found.counts > 0).sum())
        raise ValueError(
            f"{self.rows.name} hold only {distinct} different directions ({SAME**0.5:g} or more apart) in {self.N} "
            f"rows, too few for {self.clusters} clusters: use fewer clusters, or check for repeated rows"
        )

    def _draw(self, weight: Tensor, count: int, seed: tuple[int, ...]) -> Tensor:
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
        return rows[winners.indices[winners.values.isfinite()]]
