"""Identity of an image set, as plain data, for cache keys and protocols."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hirl.data.sources.decode import DECODING
from hirl.data.sources.file_images import FileImages
from hirl.data.sources.image_set import ImageSet


def image_identity(images: ImageSet) -> dict[str, Any]:
    """What distinguishes one image set from another: pixels in memory by content, files by path, size and time, and by
    how they are decoded.

    Other sets have a fingerprint of their own, or none: then their content is unknown, see `is_identified`.
    """
    found: dict[str, Any] = {"name": images.name, "count": len(images), "channels": images.channels}
    if images.labels is not None:
        found["labels"] = _sha256(images.labels)
    if images.pixels is not None:
        found["pixels"] = f"{tuple(images.pixels.shape)} {_sha256(images.pixels)}"
        if images.readable is not None:
            found["readable"] = _sha256(images.readable)
    elif isinstance(images, FileImages):
        files = hashlib.sha256()
        for index in range(len(images)):
            path = images.path(index)
            try:
                status = Path(path).stat()
                files.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
            except OSError:  # it will be reported when it is read
                files.update(f"{path}\0\n".encode(errors="surrogateescape"))
        found["files"] = files.hexdigest()
    elif images.fingerprint is not None:
        found["fingerprint"] = images.fingerprint
    if images.pixels is None:
        found["decoding"] = DECODING
    return found


def image_keys(images: ImageSet, chosen: Iterable[int]) -> list[str]:
    """A key for each of the chosen images, by its file's path, size and time; [] if one of them is not a file."""
    keys = []
    for index in chosen:
        path = Path(images.path(index))
        try:
            about = path.stat()
        except OSError:
            return []
        name = f"{path.resolve()} {about.st_size} {about.st_mtime_ns} {images.channels}"
        keys.append(hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:32])
    return keys


def is_identified(identity: Mapping[str, Any]) -> bool:
    """Whether an `image_identity` covers the content of the images."""
    return not {"pixels", "files", "fingerprint"}.isdisjoint(identity)


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor.cpu().numpy()).data).hexdigest()
