"""What the search for copies computes, kept beside the features: the details of every image, and the threshold.

Each image is known by its file's path, size and time: only the details of images that came or changed are computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hirl.data.sources.identity import image_keys
from hirl.data.sources.image_set import ImageSet
from hirl.explore.collection import Collection
from hirl.features.feature_cache import can_keep
from hirl.files import CHECKSUM, atomic_write, read_json, verify, write_json

DETAILS, THRESHOLD = "details.safetensors", "copy_threshold.json"
FORMAT = "hirl details 1"  # raise it when details or alterations change


def kept_details(
    folder: Path | None, images: ImageSet, chosen: Sequence[int], compute: Callable[[list[int]], Tensor]
) -> Tensor:
    """(n, …): the details of the chosen images, of which `compute` gives those that the folder does not hold."""
    keys = [] if folder is None else image_keys(images, chosen)
    if folder is None or not keys:
        return compute(list(chosen))
    file = folder / DETAILS
    known, stored = _read(file)
    new = [place for place, key in enumerate(keys) if key not in known]
    old = [place for place, key in enumerate(keys) if key in known]
    if stored is None or not old:
        details = compute(list(chosen))
    else:
        details = stored.new_empty((len(keys), *stored.shape[1:]))
        details[old] = stored[[known[keys[place]] for place in old]]
        if new:
            details[new] = compute([chosen[place] for place in new])
    if new and can_keep(folder):
        _write(file, keys, details)
    return details


def kept_threshold(folder: Path | None, key: Sequence[object] | None, measure: Callable[[], float]) -> float:
    """The threshold that was measured under this key, or is measured now; `key` is None if it cannot be kept."""
    if folder is None or key is None:
        return measure()
    digest = hashlib.sha256(json.dumps([FORMAT, *key]).encode()).hexdigest()
    try:
        found = read_json(folder / THRESHOLD)
        if found["key"] == digest:
            return float(found["threshold"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    threshold = measure()
    if can_keep(folder):
        write_json(folder / THRESHOLD, {"key": digest, "threshold": threshold})
    return threshold


def threshold_key(collection: Collection, chosen: Sequence[int], size: int) -> list[object] | None:
    """What a threshold depends on; None if the images cannot be told from changed ones."""
    keys = image_keys(collection.images, chosen)
    if not keys or collection.encoder is None:
        return None
    return [collection.encoder.sha256, size, collection.images.channels, *keys]


def _read(file: Path) -> tuple[dict[str, int], Tensor | None]:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return {}, None
    try:
        verify(file, required=True)
        with safe_open(file, framework="pt") as opened:
            if not (opened.metadata() or {}).get("about", "").endswith(FORMAT):
                return {}, None
            names, details = bytes(opened.get_tensor("keys").numpy()).decode(), opened.get_tensor("details")
    except (SafetensorError, OSError, ValueError):
        return {}, None  # it is computed anew
    return {name: row for row, name in enumerate(names.split())}, details


def _write(file: Path, keys: Sequence[str], details: Tensor) -> None:
    from safetensors.torch import save_file

    names = torch.frombuffer(bytearray(" ".join(keys).encode()), dtype=torch.uint8)
    with atomic_write(file, checksum=True) as aside:
        save_file({"keys": names, "details": details}, aside, metadata={"about": f"{CHECKSUM} {FORMAT}"})
