"""Unreadable images: a deterministic replacement, and a list for the user."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.files import atomic_write


class Skipped:
    """The images found unreadable so far, each once, in index order."""

    def __init__(self) -> None:
        self._found: dict[int, BadImage] = {}

    def add(self, bad: BadImage) -> None:
        self._found.setdefault(bad.index, bad)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, index: object) -> bool:
        return index in self._found

    def __iter__(self) -> Iterator[BadImage]:
        return (self._found[index] for index in sorted(self._found))

    def summary(self, name: str, count: int) -> str:
        """A sentence for users: how many of the `count` images, and the first of them."""
        return (
            f"{len(self):,} of the {count:,} images of {name} cannot be read, and in training another image takes "
            f"their place; the first: {str(next(iter(self))).rstrip('.')}"
        )

    def write(self, path: Path) -> None:
        """One line per image: index, path and reason separated by tabs, with line breaks in names escaped."""
        lines = (f"{bad.index}\t{one_line(bad.path)}\t{one_line(bad.reason)}\n" for bad in self)
        with atomic_write(path) as aside:
            aside.write_text("".join(lines), encoding="utf-8", newline="\n")


def stand_ins(readable: Tensor) -> Tensor:
    """(N,): for each image itself, or the readable one that replaces it, as chosen by `read_or_replace`."""
    good = readable.nonzero().flatten()
    if len(good) == 0:
        raise ValueError(f"none of the {len(readable)} images can be read")
    return good[torch.searchsorted(good, torch.arange(len(readable))) % len(good)]


def read_or_replace(
    images: ImageSet, index: int, *, skipped: Skipped, strict: bool = False, shorter: int | None = None
) -> tuple[Tensor, int]:
    """The image at `index`, or the next readable one, and its actual index.

    The search goes upwards and wraps around, so the replacement depends only on the index and the files. With `strict`
    the first bad image is raised instead.
    """
    if strict:
        return images.read(index, shorter=shorter), index
    for candidate in chain(range(index, len(images)), range(index)):
        if candidate in skipped:
            continue
        try:
            return images.read(candidate, shorter=shorter), candidate
        except BadImage as bad:
            skipped.add(bad)
    raise ValueError(f"none of the {len(images)} images of {images.name} can be read: {next(iter(skipped))}")
