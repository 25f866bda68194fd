"""Uniform random numbers as a pure function of (seed, epoch, view, sample, slot), without a generator's state.

Every number is a hash of its address, so workers, ranks and restarts get the same numbers. The hash chains the
finaliser of SplitMix64, which passes the usual test batteries (Guy L. Steele Jr., Doug Lea and Christine H. Flood. Fast
Splittable Pseudorandom Number Generators. OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hirl.seeds import ORDER_VIEW

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(bits: _Bits) -> _Bits:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Bits = bits ^ (bits >> np.uint64(31))
    return mixed


def _absorb(state: _Bits, values: Ints) -> _Bits:
    """The next state for each value; arrays only, since numpy warns when a scalar wraps around."""
    return _mix(state + (values.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _hashes(seed: int, epoch: int, views: Ints, samples: Ints, slots: Ints) -> _Bits:
    state = np.zeros(1, dtype=np.uint64)
    for value in (seed, epoch):
        state = _absorb(state, np.array([value], dtype=np.int64))
    state = _absorb(state, views)[None, :, None]
    state = _absorb(state, samples[:, None, None])
    return _absorb(state, slots)


def uniforms(seed: int, epoch: int, samples: Ints, views: Sequence[int], slots: range) -> Floats:
    """Numbers in [0, 1), (samples, views, slots)."""
    hashes = _hashes(seed, epoch, np.asarray(views, dtype=np.int64), samples, np.arange(slots.start, slots.stop))
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, epoch: int, count: int) -> Ints:
    """The order in which an epoch visits `count` samples."""
    hashes = _hashes(seed, epoch, np.array([ORDER_VIEW]), np.arange(count), np.zeros(1, dtype=np.int64))
    return np.argsort(hashes.reshape(-1), kind="stable")
