"""The nearest rows by cosine, in chunks of queries, so that memory does not grow with rows × queries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 1 << 24  # similarities computed at a time: 64 MiB
FEWEST_GROUPED = 4  # columns per group, below which a search by groups gains nothing


class Neighbours(NamedTuple):
    """The nearest rows of a chunk of queries, most similar first."""

    queries: slice
    similar: Tensor  # (n, k) cosines
    rows: Tensor  # (n, k) their indices


def nearest_rows(rows: Tensor, queries: Tensor, k: int) -> Iterator[Neighbours]:
    """For every query (n, D) the k rows (N, D) of the largest cosine; neither need be of unit length."""
    N = len(rows)
    if not 1 <= k <= N:
        raise ValueError(f"{k} neighbours were asked for, but there must be at least 1 and at most the {N} rows")
    unit = F.normalize(rows.float(), dim=1)
    # This size minimises the values compared: N/size group maxima and k·size members of the best groups.
    size = max(1, math.isqrt(N // k))
    size = size if size >= FEWEST_GROUPED else 1
    groups = -(-N // size)
    step = max(1, CHUNK // (size * groups))
    cosines = unit.new_full((min(step, len(queries)), size * groups), -torch.inf)
    for start in range(0, len(queries), step):
        some = F.normalize(queries[start : start + step].float(), dim=1)
        chunk = cosines[: len(some)]
        torch.mm(some, unit.T, out=chunk[:, :N])
        similar, places = chunk.topk(k, dim=1) if size == 1 else _grouped_topk(chunk, size, k)
        yield Neighbours(slice(start, start + len(some)), similar, places)


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
