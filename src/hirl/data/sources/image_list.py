"""A list of the images of a set, by which the same images are found and recognised later.

An image that is a file has its path, its size and, in a set small enough to be held in memory, a hash of its content.
A file that is missing, such as the target of a broken link, has its path alone. Any other image has its number, and a
hash of its pixels if they are in memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hirl.data.sources.escape import one_line
from hirl.data.sources.image_set import ImageSet
from hirl.files import expanded

DIGEST_BYTES = 8
HEADING = "image\tbytes\thash"


class Listed(NamedTuple):
    """One image. What is not known is an empty string."""

    name: str
    size: str = ""
    digest: str = ""

    def differs(self, other: Listed) -> bool:
        return self.size != other.size or bool(self.digest and other.digest and self.digest != other.digest)


@dataclass(frozen=True)
class ImageList:
    """The images of a set, in order."""

    images: tuple[Listed, ...]
    fingerprint: str | None = None  # of the set, for rows that are neither files nor pixels in memory

    @property
    def has_hashes(self) -> bool:
        return any(image.digest for image in self.images)

    def lines(self) -> str:
        """The list as text, a line per image."""
        return "".join("\t".join(image) + "\n" for image in self.images)

    @classmethod
    def from_lines(cls, text: str, fingerprint: str | None = None) -> ImageList:
        return cls(tuple(Listed(*line.split("\t")) for line in text.split("\n")[:-1]), fingerprint)


def list_images(images: ImageSet, place: Path | None, *, hashes: bool) -> ImageList:
    """List a set of images.

    Args:
        images: The set as `open_images` gives it.
        place: The path that was opened: names of files are relative to it.
        hashes: Whether to hash the content of files.
    """
    return ImageList(tuple(_listed(images, place, read=hashes)), images.fingerprint)


def _listed(images: ImageSet, place: Path | None, *, read: bool) -> Iterator[Listed]:
    start = None if place is None else f"{place}{os.sep}"
    for index in range(len(images)):
        path = images.path(index)
        size = _file_size(path)
        if size is not None or images.has_files:
            inside = start is not None and path.startswith(start)
            name = path[len(start) :] if inside and start is not None else full_path(path)
            yield Listed(one_line(name), size or "", _file_hash(path) if read else "")
        elif images.pixels is not None:
            pixels = np.ascontiguousarray(images.pixels[index].cpu().numpy())
            yield Listed(str(index), str(pixels.nbytes), _hash(pixels.data))
        else:
            yield Listed(str(index))


def find_differences(old: ImageList, new: ImageList) -> str | None:
    """How the new list differs from the old one, with counts; None if they hold the same images in the same order."""
    before, now = ({image.name: image for image in one} for one in (old.images, new.images))
    counts = {
        "added": len(now.keys() - before.keys()),
        "removed": len(before.keys() - now.keys()),
        "changed": sum(before[name].differs(now[name]) for name in before.keys() & now.keys()),
    }
    if any(counts.values()):
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if [image.name for image in old.images] != [image.name for image in new.images]:
        return "all in another order"
    if old.fingerprint and new.fingerprint and old.fingerprint != new.fingerprint:
        return "other content"
    return None


def path_of(source: Any) -> Path | None:
    """The path that `open_images` opens for a source; None for the name of a data set, or an object."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = expanded(source)
    return path if path.exists() else None


def full_path(path: str | os.PathLike[str]) -> str:
    """The path from the root, without `..`, with its links as they are."""
    return os.path.abspath(expanded(path))  # noqa: PTH100 (`resolve` follows links)


def _file_size(path: str) -> str | None:
    try:
        return str(os.stat(path).st_size)  # noqa: PTH116 (a million of them)
    except (OSError, ValueError):
        return None


def _file_hash(path: str) -> str:
    try:
        return _hash(Path(path).read_bytes())
    except OSError:
        return ""


def _hash(content: Any) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()
