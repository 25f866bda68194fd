"""From (seed, split, index, size) to pictures, in batches of some thousands."""

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.class_tree import KINDS, TREE
from hirl.data.shapes.dice import ORDER, Dice, Keys, mix

SPLITS = ("train", "val")
# arrays of this many pixels per kind stay in the processor's cache
_PIXELS_AT_ONCE = 65_536

# per kind: its background, its painter and the number of its marks
_PAINTERS = [
    (kingdom.setting, family.painter, marks)
    for kingdom in TREE.values()
    for family in kingdom.families.values()
    for marks in range(len(family.marks))
]


def _keys(*, seed: int, split: str, start: int, stop: int) -> Keys:
    """A hash per picture (stop − start,), which determines its drawing together with kind and size."""
    stream = mix(np.array([seed], dtype=np.uint64), SPLITS.index(split))
    return mix(np.add(stream, np.arange(start, stop, dtype=np.uint64)), 0)


def picture_kinds(*, seed: int, split: str, images: int) -> NDArray[np.int64]:
    """The kind of each picture: every run of 48 from the start holds each kind once, in its own order."""
    rounds = -(-images // len(KINDS))
    keys = _keys(seed=seed, split=split, start=0, stop=rounds * len(KINDS))
    order = np.argsort(mix(keys, ORDER).reshape(rounds, len(KINDS)), axis=1, kind="stable")
    return order.reshape(-1)[:images].astype(np.int64)


def _paint(kinds: NDArray[np.int64], keys: Keys, size: int) -> NDArray[np.uint8]:
    """(B, 3, size, size); the pictures of each kind are painted together."""
    pictures = np.empty((len(kinds), 3, size, size), dtype=np.uint8)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        canvas = Canvas(dice=Dice(keys[rows]), size=size)
        setting, painter, marks = _PAINTERS[kind]
        canvas.backdrop(setting)
        painter(canvas, marks)
        canvas.weather()
        pictures[rows] = canvas.as_bytes()
    return pictures


def paint_all(*, seed: int, split: str, images: int, size: int) -> Iterator[NDArray[np.uint8]]:
    """All pictures in order, batch by batch; on a terminal a progress bar appears after a second."""
    from rich.console import Console
    from rich.progress import Progress

    kinds = picture_kinds(seed=seed, split=split, images=images)
    batch = len(KINDS) * max(1, _PIXELS_AT_ONCE // size**2)
    console = Console(stderr=True)
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("Drawing Shapes", total=images)
    begun = time.monotonic()
    try:
        for start in range(0, images, batch):
            stop = min(start + batch, images)
            yield _paint(kinds[start:stop], _keys(seed=seed, split=split, start=start, stop=stop), size)
            progress.update(task, completed=stop)
            if not progress.live.is_started and time.monotonic() - begun > 1:
                progress.start()
    finally:
        progress.stop()
