"""Which images of a set can be read, found by reading all of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.terminal.progress import Progress, no_progress

SHORTER = 96  # pixels: a JPEG is decoded at a fraction of its size, but to its end
PIECE = 256  # images between two reports of progress


def unreadable_images(images: ImageSet, *, progress: Progress = no_progress) -> list[BadImage]:
    """The images that cannot be read, in index order."""
    if images.pixels is not None:
        return []
    found: list[BadImage] = []
    with ThreadPoolExecutor(reading_threads()) as pool:
        for start in range(0, len(images), PIECE):
            some = range(start, min(start + PIECE, len(images)))
            found += [bad for bad in pool.map(lambda index: _fault(images, index), some) if bad is not None]
            progress("looking for unreadable images", some.stop, len(images))
    return found


def reading_threads() -> int:
    """Decoders release Python's lock, so threads read as fast as processes."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _fault(images: ImageSet, index: int) -> BadImage | None:
    try:
        images.read(index, shorter=SHORTER)
    except BadImage as bad:
        return bad
    return None
