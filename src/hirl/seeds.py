"""Seeds of random streams: one number from several, so that randomness is a function of (seed, epoch, step, ...)."""

from __future__ import annotations

import numpy as np


def mix_seed(*numbers: int) -> int:
    """One generator seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
