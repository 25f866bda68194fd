"""The parts that Ward linkage joins: single rows or, of larger sets, small clusters of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.clusters import Clusters
from hirl.hierarchy.draws import EQUAL_DISTANCE, RowDraws
from hirl.hierarchy.lloyd import Lloyd
from hirl.hierarchy.rows import accumulator, chunk_size

if TYPE_CHECKING:
    from hirl.hierarchy.builder import HierarchicalKMeans

AVERAGING_ROUNDS = 2  # after one, more rows lie in another cluster than most of their neighbours (docs/log.md)


@dataclass(frozen=True)
class Parts:
    """Clusters of rows of all ranks: the part (n,) of each of this rank's rows, means (M, D) and rows (M,) of each."""

    of_row: Tensor
    means: Tensor
    counts: Tensor

    def count_distinct(self) -> int:
        """Return the number of parts that do not equal an earlier one up to rounding."""
        means = self.means.to(accumulator(self.means.device))
        squares, count = means.square().sum(1), 0
        for chunk in _chunks(means):
            distance = torch.addmm(squares, means[chunk], means.T, alpha=-2).add_(squares[chunk, None])
            repeats = (distance < EQUAL_DISTANCE).tril(chunk.start - 1).any(1)  # left of the diagonal: of earlier parts
            count += int((~repeats).sum())
        return count

    def smoothed_directions(self, neighbours: int) -> Tensor:
        """Return the direction (M, D) of each part averaged with its `neighbours` nearest ones, weighted by rows.

        A part between two clusters moves towards the one that holds most of its neighbours. Linkage, which never undoes
        a union, then does not join two clusters by the parts between them.
        """
        neighbours = min(neighbours, len(self.means) - 1)
        directions = F.normalize(self.means.float(), dim=1)
        for _ in range(AVERAGING_ROUNDS if neighbours else 0):
            weighted = directions * self.counts.to(directions.dtype)[:, None]
            together = weighted.clone()
            for chunk in _chunks(directions):
                cosines = directions[chunk] @ directions.T
                cosines.diagonal(chunk.start).fill_(-torch.inf)  # its own
                together[chunk] += weighted[cosines.topk(neighbours).indices].sum(1)
            directions = F.normalize(together, dim=1)
        return directions


def rows_as_parts(draws: RowDraws) -> Parts:
    """Make each row a part, in the order of the data set; every rank gets the rows of all ranks."""
    rows, places, ranks = draws.rows, draws.places.to(draws.rows.device), draws.ranks
    most = max(ranks.gather_objects(len(rows)))
    missing = most - len(rows)
    everywhere = ranks.gather(F.pad(places, (0, missing), value=-1))
    means = ranks.gather(F.pad(rows[:], (0, 0, 0, missing)))
    order = everywhere.argsort(stable=True)[int((everywhere < 0).sum()) :]
    of_row = torch.empty_like(everywhere).scatter_(0, order, torch.arange(len(order), device=order.device))
    mine = of_row[ranks.rank * most :][: len(rows)]
    return Parts(mine, means[order], torch.ones(len(order), device=rows.device))


def clustered_parts(
    draws: RowDraws, settings: HierarchicalKMeans, *, seed: tuple[int, int], progress: Callable[[int, int], None] | None
) -> Parts:
    """Cluster the rows into about √M nodes, and the rows of each into small clusters, M = `settings.linked` in total.

    Two rounds cost far less than one K-means with that many clusters. Borders between nodes do no harm: linkage joins
    the parts on both sides. Rows with fewer distinct directions make fewer parts.
    """
    rows, ranks = draws.rows, draws.ranks

    def cluster(clusters: int, number: int, inside: Tensor | None, coarse: Tensor | None) -> Clusters:
        lloyd = Lloyd(
            rows, draws.places, clusters, True, ranks, progress, inside=inside, coarse=coarse, may_be_empty=True
        )
        return lloyd.run(None, iterations=settings.iterations, tolerance=settings.tolerance, seed=(*seed, number))

    nodes = cluster(int(settings.linked**0.5), 0, None, None)
    used, inside = nodes.compact_index()
    parts = cluster(settings.linked, 1, inside, nodes.prototypes.rows[used])
    used, of_row = parts.compact_index()
    counts = parts.counts[used]
    return Parts(of_row, ranks.sum(rows.sums(of_row, len(used))) / counts[:, None], counts)


def _chunks(rows: Tensor) -> Iterator[slice]:
    """Slices of the rows, few enough to compare with all of them at once."""
    step = chunk_size(rows.device, len(rows))
    return (slice(start, min(start + step, len(rows))) for start in range(0, len(rows), step))
