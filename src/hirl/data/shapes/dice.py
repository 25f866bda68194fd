"""Random numbers as a function of a picture's key: integer hashing, equal on every machine."""

import numpy as np
from numpy.typing import NDArray

from hirl.data.shapes.forms import Floats

Keys = NDArray[np.uint64]

# salts of draws without dice, which count 1, 2, 3 …
GRAIN, ORDER = -2, -3
_GOLDEN = 0x9E3779B97F4A7C15


def mix(key: Keys, salt: int) -> Keys:
    """Hash each key together with a number (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        z = key + np.uint64((salt + 1) * _GOLDEN & 0xFFFFFFFFFFFFFFFF)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


class Dice:
    """Random numbers per picture: a function of its key and of the number of earlier draws only."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys  # (B,)
        self._drawn = 0

    def between(self, low: float, high: float) -> Floats:
        """Uniform in [low, high), (B, 1, 1)."""
        self._drawn += 1
        unit = (mix(self.keys, self._drawn) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return (unit * np.float32(high - low) + np.float32(low))[:, None, None]

    def chance(self, probability: float) -> Floats:
        """1 with this probability, else 0, (B, 1, 1)."""
        return (self.between(0, 1) < np.float32(probability)).astype(np.float32)

    def sign(self) -> Floats:
        """−1 or 1, (B, 1, 1)."""
        return self.chance(0.5) * 2 - 1
