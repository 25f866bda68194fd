"""Folders of MNIST-style files: `train-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`, ..., plain or gzipped."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hirl.data.sources.arrays import ArrayImages, from_arrays
from hirl.data.sources.escape import one_line
from hirl.data.sources.splits import choose_split

_NAME = re.compile(r"(?P<part>\w+?)[-_.](?P<kind>images|labels)[-_.]idx[13][-_.]ubyte(\.gz)?", re.IGNORECASE)
_UNSIGNED_BYTES = 0x08


def is_idx_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def open_idx(root: Path, file_names: Iterable[str], *, split: str | None, channels: int) -> ArrayImages:
    """The images and labels of one split; `t10k` is the test split."""
    images: dict[str, Path] = {}
    labels: dict[str, Path] = {}
    for file_name in sorted(file_names):
        if match := _NAME.fullmatch(file_name):
            part = match["part"].lower().replace("t10k", "test")
            (images if match["kind"].lower() == "images" else labels)[part] = root / file_name
    name = one_line(str(root))
    if not images:
        raise ValueError(f"{name} has idx files of labels, but none of images")
    part = choose_split(split, images, name=name)
    found = read_idx(images[part], dimensions=3)
    numbers = read_idx(labels[part], dimensions=1) if part in labels else None
    return from_arrays(found, numbers, name=f"{name}/{part}", channels=channels)


def read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """An array of unsigned bytes: two zero bytes, type, number of dimensions, sizes (big-endian), values."""
    name = one_line(str(path))
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * dimensions)
            if head[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)) or len(head) != 4 + 4 * dimensions:
                raise ValueError(f"{name} is not an idx file of unsigned bytes with {dimensions} dimension(s)")
            shape = tuple(int(size) for size in np.frombuffer(head, dtype=">u4", offset=4))
            values = file.read(math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} cannot be read: {one_line(str(error))}") from error
    if len(values) != math.prod(shape):
        raise ValueError(f"{name} announces {math.prod(shape):,} values, but does not hold that many")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)
