"""Random draws of rows that are spread over the processes of a group: the same rows however they are spread."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.rows import UnitRows
from hirl.ranks import Ranks
from hirl.seeds import mix_seed

# A row equals its prototype if their squared distance is below this: it is then a rounding error.
EQUAL_DISTANCE = 1e-6


class RowDraws:
    """Draws rows by a race: a row finishes at time E/weight with E exponential, and the first to finish win.

    E is a function of the row's position in the data set, `index` (n,) or else the order of the rows, so that the
    winners do not depend on how the rows are ordered or spread over ranks.
    """

    def __init__(self, rows: UnitRows, index: Tensor | None, ranks: Ranks) -> None:
        self.rows, self.ranks = rows, ranks
        counts = ranks.gather_objects(len(rows))
        self.N = sum(counts)
        if index is None:
            offset = sum(counts[: ranks.rank])
            self.places, self.all_places = torch.arange(offset, offset + len(rows)), self.N
        else:
            self.places = index.cpu()
            last = max(ranks.gather_objects(int(self.places.max()) if len(self.places) else -1))
            if last > 8 * self.N + 1000:
                raise ValueError(f"index reaches {last} with only {self.N} rows: it holds positions in the data set")
            self.all_places = last + 1

    def draw_weighted(
        self, weight: Tensor, count: int, seed: tuple[int, ...], groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Draw up to `count` rows of a positive `weight` (n,), with probability ∝ weight, and their `groups` (n,)."""
        finish = torch.where(weight > EQUAL_DISTANCE, self._exponential(seed) / weight, torch.inf)
        first = finish.topk(min(count, len(finish)), largest=False)
        missing = count - len(first.values)
        times = self.ranks.gather(F.pad(first.values, (0, missing), value=torch.inf))
        rows = self.ranks.gather(F.pad(self.rows[first.indices], (0, 0, 0, missing)))
        winners = times.topk(count, largest=False)
        chosen = winners.indices[winners.values.isfinite()]
        if groups is None:
            return rows[chosen], None
        return rows[chosen], self.ranks.gather(F.pad(groups[first.indices], (0, missing)))[chosen]

    def draw_one_per_group(self, groups: Tensor, count: int, seed: tuple[int, ...]) -> Tensor:
        """Draw one row per group, uniformly within the group; `groups` (n,) gives each row's group."""
        mine = self._exponential(seed)
        first = torch.full((count,), torch.inf, device=mine.device).scatter_reduce(0, groups, mine, "amin")
        first = -self.ranks.max(-first)
        won = (mine == first[groups]).nonzero().flatten()
        # Divided by their number: two ranks may hold the same row, as when a sampler fills up its last batch.
        rows = F.pad(self.rows[won], (0, 1), value=1)
        sums = self.ranks.sum(rows.new_zeros(count, rows.shape[1]).index_add_(0, groups[won], rows))
        return sums[:, :-1] / sums[:, -1:]

    def _exponential(self, seed: tuple[int, ...]) -> Tensor:
        """Return a draw (n,) for each of this rank's rows."""
        generator = torch.Generator().manual_seed(mix_seed(*seed))
        drawn = torch.empty(self.all_places).exponential_(generator=generator)
        return drawn[self.places].to(self.rows.device)
