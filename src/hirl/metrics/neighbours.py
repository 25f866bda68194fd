"""The nearest rows by cosine, in chunks of rows and queries, so that memory does not grow with their numbers.

Rows and queries may be in half precision and mapped from a file: a chunk at a time is read and converted. Beside them,
a search needs less than 1 GiB at 2,048 features and 200 neighbours, however many rows there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 1 << 24  # similarities computed at a time: 64 MiB
ROWS = 1 << 25  # features of rows compared at a time: 128 MiB
QUERIES = 1 << 13  # queries per pass over the rows, if these are more than one chunk
FEWEST_GROUPED = 4  # columns per group, below which a search by groups gains nothing


class Neighbours(NamedTuple):
    """The nearest rows of a chunk of queries, most similar first."""

    queries: slice
    similar: Tensor  # (n, k) cosines
    rows: Tensor  # (n, k) their indices


def nearest_rows(rows: Tensor, queries: Tensor, k: int, *, device: torch.device | None = None) -> Iterator[Neighbours]:
    """For every query (n, D) the k rows (N, D) of the largest cosine; neither need be of unit length.

    device: where to compare them; by default where the rows are
    """
    N = len(rows)
    if not 1 <= k <= N:
        raise ValueError(f"{k} neighbours were asked for, but there must be at least 1 and at most the {N} rows")
    where = rows.device if device is None else device
    at_once = min(N, max(k, ROWS // max(1, rows.shape[1])))
    search = _Search(k, max(1, CHUNK // _columns(at_once, k)))
    if at_once == N:
        unit = _unit(rows, where)
        for start in range(0, len(queries), search.step):
            some = _unit(queries[start : start + search.step], where)
            yield Neighbours(slice(start, start + len(some)), *search(some, unit))
        return
    chunk = torch.empty(at_once, rows.shape[1], device=where)
    for start in range(0, len(queries), QUERIES):
        parts = _unit(queries[start : start + QUERIES], where).split(search.step)
        best: list[tuple[Tensor, Tensor] | None] = [None] * len(parts)
        for first in range(0, N, at_once):
            unit = _unit(rows[first : first + at_once], where, out=chunk)
            for place, part in enumerate(parts):
                similar, found = search(part, unit)
                best[place] = _better(best[place], (similar, found + first), k)
        similar, found = (torch.cat(column) for column in zip(*filter(None, best), strict=True))
        yield Neighbours(slice(start, start + len(similar)), similar, found)


def _better(one: tuple[Tensor, Tensor] | None, other: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The k largest of two lists (n, …) of cosines and rows."""
    if one is None:
        return other
    similar, found = (torch.cat(pair, dim=1) for pair in zip(one, other, strict=True))
    similar, order = similar.topk(min(k, similar.shape[1]), dim=1)
    return similar, found.gather(1, order)


class _Search:
    """The largest cosines of at most `step` queries with some rows; keeps the memory that they are computed in."""

    def __init__(self, k: int, step: int) -> None:
        self.k, self.step = k, step
        self._cosines: Tensor | None = None
        self._rows = 0

    def __call__(self, queries: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        N, k = len(unit), min(self.k, len(unit))
        if self._cosines is None or self._rows != N:
            self._cosines = queries.new_full((min(self.step, len(queries)), _columns(N, k)), -torch.inf)
            self._rows = N
        cosines = self._cosines[: len(queries)]
        torch.mm(queries, unit.T, out=cosines[:, :N])
        size = _group(N, k)
        return cosines.topk(k, dim=1) if size == 1 else _grouped_topk(cosines, size, k)


def _unit(rows: Tensor, device: torch.device, out: Tensor | None = None) -> Tensor:
    """The rows at length 1 in single precision, in `out` if it is given."""
    if out is None:
        return F.normalize(rows.to(device).float(), dim=1)
    unit = out[: len(rows)].copy_(rows)
    return F.normalize(unit, dim=1, out=unit)


def _group(N: int, k: int) -> int:
    """The size of groups that minimises the values compared: N/size maxima and k·size members of the best groups."""
    size = max(1, math.isqrt(N // k))
    return size if size >= FEWEST_GROUPED else 1


def _columns(N: int, k: int) -> int:
    """N, filled up to full groups."""
    size = _group(N, k)
    return size * -(-N // size)


def _grouped_topk(values: Tensor, size: int, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row (n, size · groups), found among the members of the k groups of the largest maxima.

    A value above the k-th largest maximum is a member of one of these groups, so none is missed. The members of a
    group are strided over the row, so that the maxima of neighbouring groups are one vectorised comparison.
    """
    groups = values.shape[1] // size
    best = values.view(len(values), size, groups).amax(1).topk(k, dim=1, sorted=False).indices  # (n, k)
    members = best[:, None, :] + torch.arange(0, size * groups, groups, device=values.device)[:, None]  # (n, size, k)
    columns = members.flatten(1)
    found = values.gather(1, columns).topk(k, dim=1)
    return found.values, columns.gather(1, found.indices)
