"""Uniform numbers as a pure function of (seed, epoch, view, sample, slot): nothing is drawn, so nothing can be lost.

Every number is a hash of its own address. Workers, ranks and restarts ask for the numbers they need and get the same
ones. The hash chains the finaliser of splitmix64 (Steele, Lea and Flood, 2014), which passes the usual batteries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ORDER_STREAM = 1 << 32  # beyond any view number


def _mix(word: _Words) -> _Words:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Words = word ^ (word >> np.uint64(31))
    return mixed


def _absorb(state: _Words, values: Ints) -> _Words:
    """The next state for each value; arrays only, since numpy warns when a scalar wraps around."""
    return _mix(state + (values.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _words(seed: int, epoch: int, views: Ints, samples: Ints, slots: Ints) -> _Words:
    state = np.zeros(1, dtype=np.uint64)
    for value in (seed, epoch):
        state = _absorb(state, np.array([value], dtype=np.int64))
    state = _absorb(state, views)[None, :, None]
    state = _absorb(state, samples[:, None, None])
    return _absorb(state, slots)


def uniforms(seed: int, epoch: int, samples: Ints, views: Sequence[int], slots: range) -> Floats:
    """Numbers in [0, 1), (samples, views, slots)."""
    words = _words(seed, epoch, np.asarray(views, dtype=np.int64), samples, np.arange(slots.start, slots.stop))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, epoch: int, count: int) -> Ints:
    """The order in which an epoch visits `count` samples."""
    words = _words(seed, epoch, np.array([_ORDER_STREAM]), np.arange(count), np.zeros(1, dtype=np.int64))
    return np.argsort(words.reshape(-1), kind="stable")
