"""Finds the unreadable images of a set by reading all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hirl.data.loader import available_cores
from hirl.data.sources.file_images import open_files
from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.features.embedding import Embedding
from hirl.terminal.progress import Progress, no_progress

SHORTER = 96  # pixels: a JPEG is decoded at reduced size, but to its end
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
    """The number of threads to read with. Decoders release the GIL, so threads are as fast as processes."""
    return min(8, available_cores())


def _fault(images: ImageSet, index: int) -> BadImage | None:
    try:
        images.read(index, shorter=SHORTER)
    except BadImage as bad:
        return bad
    return None


def without_features(images: ImageSet, embedding: Embedding) -> dict[int, BadImage]:
    """The images that could not be read when the features were computed, by index, with the reason if still known."""
    lost = ~(embedding.readable & embedding.finest.isfinite().all(1))
    if embedding.path is not None:
        lost |= (embedding.path < 0).any(1)
    found = {}
    for index in lost.nonzero().flatten().tolist():
        path, reason = images.path(index), "it could not be read when the features were made"
        try:
            open_files([path], name=path).read(0)
        except BadImage as bad:
            reason = bad.reason
        found[index] = BadImage(index, path, reason)
    return found
