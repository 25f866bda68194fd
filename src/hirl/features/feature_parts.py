"""Features of many images in parts: a folder of .npy files in half precision, which are read memory-mapped.

Part p holds consecutive images, in order; `NAME-p.npy` is the array NAME of part p (features, z0 … zL, path). The rows
of an image that could not be read are NaN, its path −1. parts.json says what the folder holds. Every file has a
checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hirl.features.feature_files import Arrays
from hirl.files import Damaged, atomic_write, read_json, verify, write_json

FORMAT = "hirl feature parts 2"
MANIFEST = "parts.json"
DONE = "done"  # written last: all arrays of the part are there


@dataclass(frozen=True)
class FeatureParts:
    """A folder of parts. `rows`: images per part; `key`: identifies the encoder, its preprocessing and the images."""

    folder: Path
    rows: tuple[int, ...]
    key: str

    @property
    def names(self) -> list[str]:
        return [f"{part:05}" for part in range(len(self.rows))]

    def images(self, name: str) -> range:
        """The images of a part."""
        part = int(name)
        start = sum(self.rows[:part])
        return range(start, start + self.rows[part])

    def is_done(self, name: str) -> bool:
        return self._mark(name).exists()

    def _mark(self, name: str) -> Path:
        return self.folder / f"{DONE}-{name}"

    def write(self, name: str, arrays: Arrays) -> None:
        """Write the arrays of a part, floats in half precision."""
        for kind, array in arrays.items():
            stored = array.astype(np.float16 if array.dtype.kind == "f" else np.int32)
            if array.dtype.kind == "f" and np.isinf(stored).any():
                raise ValueError(f"{kind} of part {name} has values above 65,504, which half precision cannot hold")
            with atomic_write(self.folder / f"{kind}-{name}.npy", checksum=True) as aside, aside.open("wb") as file:
                np.save(file, stored)
        self._mark(name).touch()

    def arrays(self, kind: str) -> Iterator[np.ndarray]:
        """The array of every part in order, verified and memory-mapped."""
        for name in self.names:
            file = self.folder / f"{kind}-{name}.npy"
            try:
                verify(file, required=True)
                array = np.load(file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                reason = str(error) if isinstance(error, Damaged) else f"{str(file)!r} is missing or damaged"
                raise ValueError(
                    f"{reason}; delete {str(self._mark(name))!r} and repeat the hirl embed command, which then writes "
                    "this part again"
                ) from error
            yield array

    def finest(self) -> list[np.ndarray]:
        """What trees are built over, per part (n, D): z⁰, else the features."""
        kind = "z0" if (self.folder / f"z0-{self.names[0]}.npy").exists() else "features"
        return list(self.arrays(kind))


def make_parts(folder: Path, images: int, parts: int, about: dict[str, Any]) -> FeatureParts:
    """The folder for the features of so many images, new or begun with the same encoder and images."""
    if not 1 <= parts <= images:
        raise ValueError(f"parts is {parts}, but must be at least 1 and at most the {images:,} images")
    key = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
    rows = tuple(len(part) for part in np.array_split(np.arange(images), parts))
    # Another process may be making the folder: it writes nothing but hidden files before its manifest, which is looked
    # for only after listing.
    taken = folder.exists() and not all(one.name.startswith(".") for one in folder.iterdir())
    if taken and not (folder / MANIFEST).exists():
        raise ValueError(f"the folder {str(folder)!r} is not empty and holds no parts of features: name another one")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).exists():
        content = {"format": FORMAT, "rows": rows, "key": key, **about}
        write_json(folder / MANIFEST, content, default=str, indent=1)
    found = open_parts(folder, complete=False)
    if found.key != key:
        raise ValueError(
            f"{str(folder)!r} holds features of other images, or by another encoder or preprocessing: name another"
        )
    if found.rows != rows:
        raise ValueError(f"{str(folder)!r} was begun with {len(found.rows)} parts, not {parts}: leave --parts out")
    return found


def is_parts(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def open_parts(folder: Path, *, complete: bool = True) -> FeatureParts:
    """Open a folder of parts, which must be complete unless it is to be continued."""
    try:
        about = read_json(folder / MANIFEST, required=True)
        if about["format"] != FORMAT:
            raise ValueError("another format")
        parts = FeatureParts(folder, tuple(map(int, about["rows"])), str(about["key"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(folder / MANIFEST)!r} is missing, damaged or of another version of hirl: write the features to "
            "another folder"
        ) from error
    missing = [name for name in parts.names if not parts.is_done(name)]
    if complete and missing:
        raise ValueError(
            f"{len(missing)} of the {len(parts.rows)} parts in {str(folder)!r} are missing: repeat the command that "
            "writes them"
        )
    return parts
