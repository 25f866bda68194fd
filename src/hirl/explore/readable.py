"""Which images of a set can be read. Features of those that cannot are a stand-in's, so no page may show them."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hirl.data.sources.identity import image_identity, is_identified
from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.files import atomic_write
from hirl.terminal.progress import Progress, no_progress

FORMAT = "hirl readable 1"
SHORTER = 96  # pixels: a JPEG is decoded at a fraction of its size, but to its end
PIECE = 256  # images between two reports of progress


def unreadable_images(
    images: ImageSet, *, cache: Path | None = None, progress: Progress = no_progress
) -> list[BadImage]:
    """The images that cannot be read, in index order, found by reading all of them.

    `cache` is a folder that keeps the answer for as long as the files' names, sizes and times stay the same.
    """
    if images.pixels is not None:
        return []
    identity = image_identity(images)
    about = json.dumps({"format": FORMAT, "images": identity}, sort_keys=True)
    name = f"readable-{hashlib.sha256(about.encode()).hexdigest()[:20]}.json"
    file = None if cache is None or not is_identified(identity) else cache / name
    known = None if file is None else _known(file, about)
    if known is not None:
        return [BadImage(index, images.path(index), reason) for index, reason in known]
    found: list[BadImage] = []
    with ThreadPoolExecutor(reading_threads()) as pool:
        for start in range(0, len(images), PIECE):
            some = range(start, min(start + PIECE, len(images)))
            found += [bad for bad in pool.map(lambda index: _fault(images, index), some) if bad is not None]
            progress("looking for unreadable images", some.stop, len(images))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as aside:
            aside.write_text(json.dumps({"about": about, "bad": [[bad.index, bad.reason] for bad in found]}), "utf-8")
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


def _known(file: Path, about: str) -> list[tuple[int, str]] | None:
    try:
        kept = json.loads(file.read_text("utf-8"))
        return [(int(index), str(reason)) for index, reason in kept["bad"]] if kept["about"] == about else None
    except (OSError, ValueError, KeyError, TypeError):  # absent or damaged: it is made again
        return None
