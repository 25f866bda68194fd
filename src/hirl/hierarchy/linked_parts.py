"""What Ward linkage joins: every row, or if there are too many, small clusters of rows that K-means makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.clusters import Clusters
from hirl.hierarchy.draws import SAME, RowDraws
from hirl.hierarchy.lloyd import Lloyd
from hirl.hierarchy.rows import accumulator, chunk_size

if TYPE_CHECKING:
    from hirl.hierarchy.builder import HierarchicalKMeans

AVERAGED = 2  # times: once leaves more rows in a cluster that most of their neighbours are not in, docs/log.md


@dataclass(frozen=True)
class Parts:
    """Clusters of rows of all ranks: the part (n,) of each of this rank's rows, means (M, D) and rows (M,) of each."""

    of_row: Tensor
    means: Tensor
    counts: Tensor

    def different(self) -> int:
        """The number of parts that are not equal, up to rounding, to an earlier one."""
        means = self.means.to(accumulator(self.means.device))
        squares, count = means.square().sum(1), 0
        for chunk in _chunks(means):
            distance = torch.addmm(squares, means[chunk], means.T, alpha=-2).add_(squares[chunk, None])
            repeats = (distance < SAME).tril(chunk.start - 1).any(1)  # of an earlier part: those left of the diagonal
            count += int((~repeats).sum())
        return count

    def averaged(self, neighbours: int) -> Tensor:
        """Return the direction (M, D) of each part together with its `neighbours` nearest ones, by their rows, twice.

        A part between two clusters moves to the one that most of its neighbours are in, so that linkage, which never
        takes a union back, does not join clusters by what lies between them.
        """
        neighbours = min(neighbours, len(self.means) - 1)
        directions = F.normalize(self.means.float(), dim=1)
        for _ in range(AVERAGED if neighbours else 0):
            weighted = directions * self.counts.to(directions.dtype)[:, None]
            together = weighted.clone()
            for chunk in _chunks(directions):
                cosines = directions[chunk] @ directions.T
                cosines.diagonal(chunk.start).fill_(-torch.inf)  # its own
                together[chunk] += weighted[cosines.topk(neighbours).indices].sum(1)
            directions = F.normalize(together, dim=1)
        return directions


def rows_as_parts(draws: RowDraws) -> Parts:
    """Take every row for itself, in the order of the data set; each rank gets the rows of all."""
    rows, places, ranks = draws.rows, draws.places.to(draws.rows.device), draws.ranks
    most = max(ranks.objects(len(rows)))
    missing = most - len(rows)
    everywhere = ranks.joined(F.pad(places, (0, missing), value=-1))
    means = ranks.joined(F.pad(rows[:], (0, 0, 0, missing)))
    order = everywhere.argsort(stable=True)[int((everywhere < 0).sum()) :]
    of_row = torch.empty_like(everywhere).scatter_(0, order, torch.arange(len(order), device=order.device))
    mine = of_row[ranks.rank * most :][: len(rows)]
    return Parts(mine, means[order], torch.ones(len(order), device=rows.device))


def clustered_parts(
    draws: RowDraws, how: HierarchicalKMeans, *, seed: tuple[int, int], progress: Callable[[int, int], None] | None
) -> Parts:
    """Cluster the rows into about √M nodes, and the rows of each into small clusters, M = `how.linked` in all.

    Two rounds cost far less than one K-means with that many clusters. Cuts between nodes do no harm: linkage joins
    what lies on both sides. Rows with fewer different directions make fewer parts.
    """
    rows, ranks = draws.rows, draws.ranks

    def cluster(clusters: int, number: int, inside: Tensor | None, coarse: Tensor | None) -> Clusters:
        lloyd = Lloyd(
            rows, draws.places, clusters, True, ranks, progress, inside=inside, coarse=coarse, may_be_empty=True
        )
        return lloyd.run(None, iterations=how.iterations, tolerance=how.tolerance, seed=(*seed, number))

    nodes = cluster(int(how.linked**0.5), 0, None, None)
    used, inside = nodes.index_of_used()
    parts = cluster(how.linked, 1, inside, nodes.prototypes.rows[used])
    used, of_row = parts.index_of_used()
    counts = parts.counts[used]
    return Parts(of_row, ranks.sum(rows.sums(of_row, len(used))) / counts[:, None], counts)


def _chunks(rows: Tensor) -> Iterator[slice]:
    """Slices of the rows, few enough to compare with all of them at once."""
    step = chunk_size(rows.device, len(rows))
    return (slice(start, min(start + step, len(rows))) for start in range(0, len(rows), step))
