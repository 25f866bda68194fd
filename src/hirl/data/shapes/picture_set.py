"""Shapes: the built-in pictures as an indexed set with labels, drawn once and cached on disk."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hirl.data.shapes.class_tree import FAMILIES, KINDS, KINGDOMS
from hirl.data.shapes.painting import SPLITS, paint_all, picture_kinds
from hirl.data.sources.image_set import ImageSet
from hirl.files import atomic_write, cache_folder

# part of the name of cached files: raise it whenever a pixel changes
DRAWING_VERSION = 1
SMALLEST, LARGEST = 16, 512


class Shapes(ImageSet):
    """An indexed set of drawn pictures with labels at three levels.

    Picture i depends only on `seed`, `split`, `size` and i, not on `images`, the machine or earlier draws. A larger
    size draws the same scene in more detail. Each run of 48 pictures from the start holds every kind once.

    Args:
        images: Number of pictures.
        size: Height and width in pixels, 16 to 512.
        seed: Selects other pictures of the same kinds.
        split: "train" or "val": two sets without a common picture.
        cache: Whether to keep the drawn pictures in $XDG_CACHE_HOME/hirl (~/.cache/hirl) for the next time.
    """

    labels: Tensor
    pixels: Tensor

    def __init__(
        self, *, images: int = 10_000, size: int = 32, seed: int = 0, split: str = "train", cache: bool = True
    ) -> None:
        if images < 1:
            raise ValueError(f"images is {images!r}, but must be at least 1")
        if not SMALLEST <= size <= LARGEST:
            raise ValueError(f"size is {size!r}, but must be from {SMALLEST} to {LARGEST} pixels")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed is {seed!r}, but must be from 0 to 2**63 - 1")
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}, but must be one of {', '.join(map(repr, SPLITS))}")
        self.images, self.size, self.seed, self.split = images, size, seed, split
        kind = torch.from_numpy(picture_kinds(seed=seed, split=split, images=images))
        family = kind // (len(KINDS) // len(FAMILIES))
        kingdom = family // (len(FAMILIES) // len(KINGDOMS))
        super().__init__(
            name=f"Shapes {split}, {size} px, seed {seed}",
            labels=torch.stack([kind, family, kingdom], dim=1),  # (N, 3)
            label_names=(KINDS, FAMILIES, KINGDOMS),
        )
        self._cached = cache
        self._open()

    def __len__(self) -> int:
        return self.images

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:  # noqa: ARG002 - nothing to decode
        """(3, size, size) uint8."""
        self._check(index)
        return self.pixels[index]

    def __getstate__(self) -> dict[str, Any]:
        """A cached set is sent to worker processes without its pixels: they open the file."""
        return {name: value for name, value in self.__dict__.items() if not (self._cached and name == "pixels")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._cached:
            self._open()

    def _open(self) -> None:
        """Set `pixels`: from the cache, which is filled first if empty, or drawn into memory."""
        shape = (self.images, 3, self.size, self.size)
        if self._cached:
            file = cache_folder() / f"shapes-{DRAWING_VERSION}-{self.split}-{self.seed}-{self.size}px-{self.images}.npy"
            try:
                if not _holds(file, shape):
                    _write(file, shape, self._paint())
                # mapped copy-on-write: pages are read on access, and changes do not reach the file
                self.pixels = torch.from_numpy(np.load(file, mmap_mode="c"))
                return
            except (OSError, ValueError) as error:
                warnings.warn(f"{file} cannot be used ({error}): the shapes are kept in memory only", stacklevel=3)
                self._cached = False
        pixels = np.empty(shape, dtype=np.uint8)
        start = 0
        for pictures in self._paint():
            pixels[start : start + len(pictures)] = pictures
            start += len(pictures)
        self.pixels = torch.from_numpy(pixels)

    def _paint(self) -> Iterable[NDArray[np.uint8]]:
        return paint_all(seed=self.seed, split=self.split, images=self.images, size=self.size)


def _holds(file: Path, shape: tuple[int, ...]) -> bool:
    """Whether the file is a complete array of this shape."""
    try:
        array = np.load(file, mmap_mode="r")
    except (FileNotFoundError, EOFError, ValueError):
        return False
    return bool(array.dtype == np.uint8 and array.shape == shape)


def _write(file: Path, shape: tuple[int, ...], batches: Iterable[NDArray[np.uint8]]) -> None:
    """Write the array batch by batch, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as aside, aside.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for pictures in batches:
            out.write(pictures.data)
