"""Seeds of random generators as a function of several numbers, and the one list of what is drawn from which.

A seed gives one stream of random numbers per purpose, so that no two purposes draw the same numbers. The results that
are published depend on the values here.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


class Stream(enum.IntEnum):
    """Mixed into the seed of a run or of an evaluation by `mix_seed`, before the epoch, the step or the image."""

    # A run
    NETWORKS = 0
    HEADS = 1  # h_l of HIRL
    FORWARD = 2  # drop path and the like, and MoCo's shuffle
    NEGATIVES = 3
    KMEANS = 4

    # An evaluation: its seed differs from the run's, or its draws are unrelated
    CLASSIFIER = 0
    DETECTION_ORDER = 10
    DETECTION_VIEW = 11
    DETECTION_IMAGE = 12  # the seed of an image's `RegionStream`
    EVALUATION_FORWARD = 20
    DETECTOR = 30  # weights of its heads
    ERASING = 50
    MIXTURES = 51


class RegionStream(enum.IntEnum):
    """Mixed into the seed of an image that a detector is trained on, to sample the regions of each of its heads."""

    PROPOSALS = 0
    C4 = 1
    CASCADE = 10  # and one more per stage


# `hirl.data.views.draws` hashes (seed, epoch, view, sample, slot). Beside the epochs and views that there are:
ORDER_VIEW = 1 << 32  # the order of an epoch
CACHED_VIEW = (1 << 32) + 1  # which of an image's cached views an epoch draws
PARTNER_VIEW = (1 << 32) + 2  # whether, and from which partner, an image gets other views
SAMPLING_EPOCH = 1 << 40  # which labelled images an evaluation learns from
# Slots of a view
CROP_SLOTS = range(23)  # ten areas, ten ratios, top, left, flip
COLOUR_SLOTS = range(32, 42)
AUGMENT_SLOTS = range(48, 49)
MASK_SLOTS = range(64, 66)
MASK_ATTEMPTS_FROM = 128


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
