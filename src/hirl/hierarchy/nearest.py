"""The prototype nearest to each row: once, or over steps in which prototypes move and most rows keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hirl.bfloat16 import has_bfloat16
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
BFLOAT16 = 2.0**-8  # the largest relative error of rounding to bfloat16
LEAST_ROUGH = 128  # rows, prototypes: with fewer, a product in bfloat16 saves less than what comes with it
# If it leaves more than this share of a chunk in doubt, in a step that compares all rows, bfloat16 is switched off.
MOST_DOUBTFUL = 0.4


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
        self._workspace = _Workspace(rows.device)

    def __call__(self, prototypes: Tensor, before: Tensor | None) -> Iterator[Nearest]:
        """As `nearest`; `before` (n,) is what the last call has found, None if it is the first."""
        if len(prototypes) < LEAST_PROTOTYPES:
            yield from nearest(self.rows, prototypes, spherical=self.spherical)
            return
        if before is None:
            self._before, self._bound = None, torch.empty(len(self.rows), device=self.rows.device)
        scores = _Scores(prototypes, self._workspace, spherical=self.spherical)
        step = _Step(scores, self._before, self.rows)
        self._workspace.judging = before is None  # later, only rows whose best prototypes are close are compared
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
            earlier = _offset(before, spherical=spherical)
            rise = torch.linalg.vector_norm(prototypes - before, dim=1) + (earlier - scores.offset)
            rise, order = rise.sort(descending=True)
            self.rise = rise  # (M,) how much a score may have risen: the largest first
            self.position = torch.empty_like(order).scatter_(0, order, torch.arange(M, device=order.device))
            self.risen = _Scores(prototypes[order], scores.workspace, spherical=spherical)
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


class _Workspace:
    """Memory for scores, kept over chunks and steps: into fresh memory, a product takes twice as long."""

    def __init__(self, device: torch.device) -> None:
        self.scores = torch.empty(0, device=device)
        self.rough_rows = torch.empty(0, dtype=torch.bfloat16, device=device)
        self.rough_scores = torch.empty(0, dtype=torch.bfloat16, device=device)
        # Whether rows are compared in bfloat16 first. GPUs may round partial sums too, which the bounds do not cover.
        self.rough = device.type == "cpu" and has_bfloat16(device)
        self.judging = True  # whether the next rows may switch it off


class _Scores:
    """Scores of rows with prototypes (M, D): x·c − |c|²/2, or x·c on a sphere; the nearest has the largest.

    Where the device computes in bfloat16, a product in it comes first, with bounds on its errors; only rows whose two
    best prototypes it cannot tell apart are compared in single precision.
    """

    def __init__(self, prototypes: Tensor, workspace: _Workspace, *, spherical: bool) -> None:
        self.prototypes, self.workspace, self.spherical = prototypes, workspace, spherical
        self.offset = _offset(prototypes, spherical=spherical)  # (M,)
        if workspace.rough and len(prototypes) >= LEAST_ROUGH:
            self.rough = prototypes.bfloat16()
            error = torch.linalg.vector_norm(self.rough.float() - prototypes, dim=1)
            self.longest = float(torch.linalg.vector_norm(self.rough.float(), dim=1).amax())
            self.largest_error = float(error.amax() + BFLOAT16 * self.offset.amax()) + ROUNDING * self.longest

    def distance(self, score: Tensor) -> Tensor:
        """Return the squared distance of unit rows from their score: |x − c|² = 1 − 2(x·c − |c|²/2)."""
        return (1 - 2 * (score - 0.5 if self.spherical else score)).clamp_(min=0)

    def own(self, rows: Tensor, which: Tensor) -> Tensor:
        """Return the score (n,) of each row with one prototype."""
        return (rows * self.prototypes.index_select(0, which)).sum(1) - self.offset[which]

    def top_two(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the largest score (n,) of each row, with which prototype, and a bound (n,) on all its other scores."""
        M = len(self.prototypes)
        if self._is_rough(rows, M):
            scores, error = self._rough(rows, M)
            best, which, second = self._top_two(scores)
            bound = _rounded_from(second) + error
            doubtful = (-_rounded_from(-best) - error <= bound).nonzero().flatten()
            if len(doubtful):
                _, which[doubtful], bound[doubtful] = self._top_two(self._all(rows.index_select(0, doubtful), M))
            if self.workspace.judging:
                self.workspace.rough = len(doubtful) <= MOST_DOUBTFUL * len(rows)
        else:
            _, which, bound = self._top_two(self._all(rows, M))
        # Row by row, as the bits of a product may depend on its precision and on the other rows.
        return self.own(rows, which), which, bound

    def best_but(self, own: Tensor, rows: Tensor, width: int) -> Tensor:
        """Return a bound (n,) on the scores of each row with the first `width` prototypes but its `own` (n,)."""
        scores, error = self._rough(rows, width) if self._is_rough(rows, width) else (self._all(rows, width), None)
        other = scores.scatter_(1, own.clamp(max=width)[:, None], -torch.inf).amax(1)
        return other if error is None else _rounded_from(other) + error

    def _is_rough(self, rows: Tensor, width: int) -> bool:
        return self.workspace.rough and min(len(rows), width) >= LEAST_ROUGH

    def _all(self, rows: Tensor, width: int) -> Tensor:
        """Return the scores with the first `width` prototypes, and −∞ up to the next multiple of COLUMNS."""
        scores = self._columns(len(rows), width)
        torch.mm(rows, self.prototypes[:width].T, out=scores[:, :width])
        return self._without_offset(scores, width)

    def _rough(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """As `_all`, by a product in bfloat16; and the largest error (n,) of a row's scores before they are rounded."""
        n, workspace = len(rows), self.workspace
        # For every shape, oneDNN compiles a product and keeps it, so there are only four numbers of rows per octave.
        step = 1 << max(0, n.bit_length() - 3)
        rounded = workspace.rough_rows.resize_(-(-n // step) * step, rows.shape[1])
        rounded[n:] = 0
        rounded[:n] = rows
        product = torch.mm(rounded, self.rough[:width].T, out=workspace.rough_scores.resize_(len(rounded), width))
        scores = self._columns(n, width)
        scores[:, :width] = product[:n]
        moved = torch.linalg.vector_norm(rounded[:n].float() - rows, dim=1)
        error = moved * self.longest + self.largest_error  # |x̂·ĉ − x·c| ≤ |x̂ − x||ĉ| + |x||ĉ − c|
        return self._without_offset(scores, width), error

    def _columns(self, rows: int, width: int) -> Tensor:
        scores = self.workspace.scores.resize_(rows, (width // COLUMNS + 1) * COLUMNS)
        scores[:, width:] = -torch.inf
        return scores

    def _without_offset(self, scores: Tensor, width: int) -> Tensor:
        if not self.spherical:
            scores[:, :width] -= self.offset[:width]
        return scores

    @staticmethod
    def _top_two(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the largest score (n,) of each row, its place (n,), and the second largest (n,)."""
        blocks = scores.view(len(scores), -1, COLUMNS)
        tops = blocks.amax(2)
        best, block = tops.max(1)
        first = torch.arange(0, tops.numel(), tops.shape[1], device=scores.device)
        inside = scores.view(-1, COLUMNS).index_select(0, first + block)  # (n, COLUMNS)
        place = inside.argmax(1)
        inside.scatter_(1, place[:, None], -torch.inf)
        tops.scatter_(1, block[:, None], -torch.inf)
        return best, block * COLUMNS + place, torch.maximum(inside.amax(1), tops.amax(1))


def _offset(prototypes: Tensor, *, spherical: bool) -> Tensor:
    """Return what is subtracted from x·c for the score with each prototype, (M,)."""
    length = prototypes.square().sum(1)
    return torch.zeros_like(length) if spherical else length / 2


def _rounded_from(score: Tensor) -> Tensor:
    """Return the largest number that is rounded to this one in bfloat16, or a larger one."""
    return score + BFLOAT16 * score.abs()


def nearest(rows: UnitRows, prototypes: Tensor, *, spherical: bool = True) -> Iterator[Nearest]:
    """Find the nearest of the prototypes (M, D) for every row, with one matrix product per chunk.

    `spherical`: the prototypes have length 1, so the nearest is the one with the largest cosine.
    """
    scores = _Scores(prototypes, _Workspace(rows.device), spherical=spherical)
    for chunk in rows.chunks(len(prototypes)):
        some = rows[chunk]
        best, which, _ = scores.top_two(some)
        yield Nearest(chunk, some, which, scores.distance(best))
