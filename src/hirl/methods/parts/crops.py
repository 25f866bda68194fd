"""Crops of equal size, which a network takes together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import Tensor


def by_size(crops: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Crops of V views, each (B, C, s, s): the consecutive ones of equal size together."""
    for _, equal in groupby(crops, key=lambda crop: crop.shape[-1]):
        yield list(equal)
