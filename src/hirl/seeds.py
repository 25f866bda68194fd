"""Seeds of random generators as a function of several numbers, such as (seed, epoch, step)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def mix_seed(*numbers: int) -> int:
    """Combine several numbers into one seed for a generator."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch's CPU, which timm's augmentations draw from.

    Afterwards they are as they were before.
    """
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002 (the one that timm draws from)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
