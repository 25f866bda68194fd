"""Features on disk, computed once per network, preprocessing and image set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hirl.data.sources.files import FileImages
from hirl.data.sources.image_set import ImageSet
from hirl.files import atomic_write

FORMAT = "hirl features 1"  # part of the key: raise it whenever the same images would be preprocessed differently


@dataclass(frozen=True)
class FeatureCache:
    """One safetensors file per key. Without a folder nothing is kept."""

    folder: Path | None

    def get_or_compute(self, kind: str, key: dict[str, Any], compute: Callable[[], Tensor]) -> Tensor:
        """The features cached for this key, or those that `compute` gives now.

        kind: what they are, "features" or "representations"; the start of the file's name
        key: everything they depend on, as plain data
        """
        if self.folder is None:
            return compute()
        about = json.dumps({"format": FORMAT, "kind": kind} | key, sort_keys=True)
        file = self.folder / f"{kind}-{hashlib.sha256(about.encode()).hexdigest()[:20]}.safetensors"
        features = _read(file, about)
        if features is None:
            from safetensors.torch import save_file

            features = compute()
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as aside:
                save_file({"features": features.contiguous()}, aside, metadata={"about": about})
        return features


def _read(file: Path, about: str) -> Tensor | None:
    """The features in a file with exactly this key; None if there is no such file or it is damaged."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor("features") if (opened.metadata() or {}).get("about") == about else None
    except SafetensorError:
        return None


def image_identity(images: ImageSet) -> dict[str, Any]:
    """What distinguishes one image set from another: pixels in memory by content, files by path, size and time.

    Other sets have a fingerprint of their own, or none: then their content is unknown, see `is_identified`.
    """
    found: dict[str, Any] = {"name": images.name, "count": len(images), "channels": images.channels}
    if images.labels is not None:
        found["labels"] = _sha256(images.labels)
    if images.pixels is not None:
        found["pixels"] = f"{tuple(images.pixels.shape)} {_sha256(images.pixels)}"
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
    return found


def is_identified(identity: Mapping[str, Any]) -> bool:
    """Whether an `image_identity` covers the content of the images."""
    return not {"pixels", "files", "fingerprint"}.isdisjoint(identity)


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor.cpu().numpy()).data).hexdigest()
