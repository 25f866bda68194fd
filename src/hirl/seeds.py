"""Seeds of random generators as a function of several numbers, such as (seed, epoch, step)."""

from __future__ import annotations

import numpy as np


def mix_seed(*numbers: int) -> int:
    """Combine several numbers into one seed for a generator."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
