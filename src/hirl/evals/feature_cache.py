"""Features on disk, computed once per network, preprocessing and image set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

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
