"""Features on disk, computed once per network, preprocessing and image set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from hirl.files import atomic_write

# Part of the key: raise it whenever the same images would be preprocessed differently. Since 2, images that could not
# be read are marked, rather than given another image's features.
FORMAT = "hirl features 2"


class ImageFeatures(NamedTuple):
    """Features of a set of images."""

    rows: Tensor  # (N, …); NaN for an image that could not be read
    readable: Tensor  # (N,) bool


@dataclass(frozen=True)
class FeatureCache:
    """One safetensors file per key. Without a folder nothing is kept."""

    folder: Path | None

    def get_or_compute(self, kind: str, key: dict[str, Any], compute: Callable[[], ImageFeatures]) -> ImageFeatures:
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
                tensors = {"features": features.rows.contiguous(), "readable": features.readable}
                save_file(tensors, aside, metadata={"about": about})
        return features


def _read(file: Path, about: str) -> ImageFeatures | None:
    """The features in a file with exactly this key; None if there is no such file or it is damaged."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            if (opened.metadata() or {}).get("about") != about:
                return None
            return ImageFeatures(opened.get_tensor("features"), opened.get_tensor("readable"))
    except SafetensorError:
        return None
