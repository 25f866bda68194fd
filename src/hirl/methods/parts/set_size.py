"""Defaults that depend on the number of images."""

from __future__ import annotations

LARGE_SET = 20_000  # images


def queue_length(images: int, batch_size: int, *, most: int) -> int:
    """A sixteenth of the images, in whole batches: a long queue of a small set is full of views of the same images."""
    length = max(4 * batch_size, min(most, power_of_two(images / 16)))
    return length // batch_size * batch_size


def power_of_two(value: float) -> int:
    """The largest power of two up to `value`; at least 1."""
    return 1 << max(0, int(value).bit_length() - 1)
