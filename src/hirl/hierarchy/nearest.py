"""The prototype nearest to each row: once, or over steps in which prototypes move and most rows keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hirl.hierarchy.rows import UnitRows

# A row's argmax is found first among maxima of blocks of this many columns, then within one block: on a CPU, argmax
# takes 4 to 14 times as long as the maximum alone.
COLUMNS = 64
# With fewer prototypes, the bounds of `NearestSteps` cost as much as they save.
LEAST_PROTOTYPES = 512
# Rows are compared with these shares of the prototypes: no less than a row needs, few enough for large products.
SHARES = (0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
# Scores of unit rows that are closer than this, per unit of the prototypes' length, may be in either order by rounding.
ROUNDING = 1e-5


class Nearest(NamedTuple):
    """A chunk of rows and the prototype nearest to each."""

    chunk: slice
    rows: Tensor  # (n, D), unit length
    which: Tensor  # (n,)
    distance: Tensor  # (n,), squared


class NearestSteps:
    """Finds the nearest prototypes over many steps, without comparing every row with every prototype each time.

    For every row there is a bound on its score with all prototypes but its own. A prototype that moves by d raises its
    score with a unit row by d at most, so a row whose own score stays above needs to be compared only with prototypes
    that have moved far. It gets another prototype only after a comparison with all of them, so the result is the same
    as that of `nearest`. (Hamerly, Making k-means even faster, 2010, has one bound for all prototypes.)
    """

    def __init__(self, rows: UnitRows, *, spherical: bool = True) -> None:
        self.rows, self.spherical = rows, spherical
        self._before: Tensor | None = None  # (M, D) the last prototypes
        self._bound = torch.empty(0, device=rows.device)  # (n,)
        self._buffer = torch.empty(0, device=rows.device)

    def __call__(self, prototypes: Tensor, before: Tensor | None) -> Iterator[Nearest]:
        """As `nearest`; `before` (n,) is what the last call has found, None if it is the first."""
        if len(prototypes) < LEAST_PROTOTYPES:
            yield from nearest(self.rows, prototypes, spherical=self.spherical)
            return
        if before is None:
            self._before, self._bound = None, torch.empty(len(self.rows), device=self.rows.device)
        scores = _Scores(prototypes, spherical=self.spherical, buffer=self._buffer)
        step = _Step(scores, self._before, self.rows)
        for chunk in self.rows.chunks(0):
            some = self.rows[chunk]
            which, best = step.compare(some, None if before is None else before[chunk], self._bound[chunk])
            yield Nearest(chunk, some, which, scores.distance(best))
        self._before = prototypes.clone()


class _Step:
    """One step: scores with the prototypes (M, D), and where these were before (None: nowhere)."""

    def __init__(self, scores: _Scores, before: Tensor | None, rows: UnitRows) -> None:
        self.scores, self.rows = scores, rows
        prototypes, spherical, M = scores.prototypes, scores.spherical, len(scores.prototypes)
        if before is not None:
            earlier = _Scores(before, spherical=spherical).offset
            rise = torch.linalg.vector_norm(prototypes - before, dim=1) + (earlier - scores.offset)
            rise, order = rise.sort(descending=True)
            self.rise = rise  # (M,) how much a score may have risen: the largest first
            self.position = torch.empty_like(order).scatter_(0, order, torch.arange(M, device=order.device))
            self.risen = _Scores(prototypes[order], spherical=spherical, buffer=scores.buffer)
            self.widths = sorted({int(M * share) for share in SHARES})
            self.slack = ROUNDING * float(torch.linalg.vector_norm(prototypes, dim=1).amax())

    def compare(self, some: Tensor, before: Tensor | None, bound: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nearest prototype of some rows (n, D) and their score with it; updates their `bound` (n,)."""
        if before is None:
            which, best = torch.empty(len(some), dtype=torch.int64, device=some.device), torch.empty_like(bound)
            doubtful = torch.arange(len(some), device=some.device)
        else:
            which, best = before.clone(), self.scores.own(some, before)
            doubtful = self._doubtful(some, before, best, bound)
        for places in doubtful.split(self.rows.at_once(len(self.scores.prototypes))):
            if len(places):
                best[places], which[places], bound[places] = self.scores.top_two(some.index_select(0, places))
        return which, best

    def _doubtful(self, some: Tensor, before: Tensor, own: Tensor, bound: Tensor) -> Tensor:
        """Return which rows may have another nearest prototype; for all others, update the bounds."""
        # A row may be nearer to as many of the prototypes, in the order of their rise, as have risen by its margin.
        need = torch.searchsorted(-self.rise, bound - own + self.slack, right=True)
        group = torch.bucketize(need, torch.tensor(self.widths, device=need.device))
        doubtful = [(group == len(self.widths)).nonzero().flatten()]
        for number, width in enumerate(self.widths):
            for places in (group == number).nonzero().flatten().split(self.rows.at_once(width)):
                raised = bound[places] + self.rise[width]
                if width and len(places):
                    other = self.risen.best_but(self.position[before[places]], some.index_select(0, places), width)
                    raised = torch.maximum(raised, other)
                    doubtful.append(places[other >= own[places] - self.slack])
                bound[places] = raised
        return torch.cat(doubtful)


class _Scores:
    """Scores of rows with prototypes (M, D): x·c − |c|²/2, or x·c on a sphere; the nearest has the largest."""

    def __init__(self, prototypes: Tensor, *, spherical: bool, buffer: Tensor | None = None) -> None:
        self.prototypes, self.spherical = prototypes, spherical
        length = prototypes.square().sum(1)
        self.offset = torch.zeros_like(length) if spherical else length / 2  # (M,)
        # Kept over chunks and steps: into fresh memory, a product takes twice as long.
        self.buffer = torch.empty(0, device=prototypes.device) if buffer is None else buffer

    def distance(self, score: Tensor) -> Tensor:
        """Return the squared distance of unit rows from their score: |x − c|² = 1 − 2(x·c − |c|²/2)."""
        return (1 - 2 * (score - 0.5 if self.spherical else score)).clamp_(min=0)

    def own(self, rows: Tensor, which: Tensor) -> Tensor:
        """Return the score (n,) of each row with one prototype."""
        return (rows * self.prototypes.index_select(0, which)).sum(1) - self.offset[which]

    def best(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest score (n,) of each row, and with which prototype."""
        return self._largest(self._all(rows, len(self.prototypes)))[:2]

    def top_two(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `best`, and the second largest score (n,)."""
        best, which, tops, block, inside = self._largest(self._all(rows, len(self.prototypes)))
        inside.scatter_(1, which[:, None] % COLUMNS, -torch.inf)
        tops.scatter_(1, block[:, None], -torch.inf)
        return best, which, torch.maximum(inside.amax(1), tops.amax(1))

    def best_but(self, own: Tensor, rows: Tensor, width: int) -> Tensor:
        """Return the largest score (n,) of each row with the first `width` prototypes but its `own` (n,)."""
        scores = self._all(rows, width)
        return scores.scatter_(1, own.clamp(max=width)[:, None], -torch.inf).amax(1)

    def _all(self, rows: Tensor, width: int) -> Tensor:
        """Return the scores with the first `width` prototypes, and −∞ up to the next multiple of COLUMNS."""
        columns = (width // COLUMNS + 1) * COLUMNS
        scores = self.buffer.resize_(len(rows), columns)
        torch.mm(rows, self.prototypes[:width].T, out=scores[:, :width])
        if not self.spherical:
            scores[:, :width] -= self.offset[:width]
        scores[:, width:] = -torch.inf
        return scores

    @staticmethod
    def _largest(scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the largest score (n,), its place (n,), the maxima of all blocks, its block (n,) and that block."""
        blocks = scores.view(len(scores), -1, COLUMNS)
        tops = blocks.amax(2)
        best, block = tops.max(1)
        first = torch.arange(0, tops.numel(), tops.shape[1], device=scores.device)
        inside = scores.view(-1, COLUMNS).index_select(0, first + block)  # (n, COLUMNS)
        return best, block * COLUMNS + inside.argmax(1), tops, block, inside


def nearest(rows: UnitRows, prototypes: Tensor, *, spherical: bool = True) -> Iterator[Nearest]:
    """Find the nearest of the prototypes (M, D) for every row, with one matrix product per chunk.

    `spherical`: the prototypes have length 1, so the nearest is the one with the largest cosine.
    """
    scores = _Scores(prototypes, spherical=spherical)
    for chunk in rows.chunks(len(prototypes)):
        some = rows[chunk]
        best, which = scores.best(some)
        yield Nearest(chunk, some, which, scores.distance(best))
