"""Features on disk, computed once per network, preprocessing and image set.

The pooled features of many images, 1 GiB or more in single precision, are kept in half precision in a file of their
own, which is written batch by batch and mapped rather than read: no more memory is needed for more images.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hirl.files import CHECKSUM, Damaged, atomic_write, check_parent, verify

# Part of the key: raise it whenever the same images would be preprocessed differently. Since 2, images that could not
# be read are marked, rather than given another image's features; since 3, every file has a checksum.
FORMAT = "hirl features 3"
LARGE = 1 << 28  # number of values from which features are stored in half precision
Allocate: TypeAlias = Callable[[Sequence[int]], Tensor]
"""Gives the tensor of a shape that features are written to."""


class ImageFeatures(NamedTuple):
    rows: Tensor  # (N, …); NaN for an image that could not be read
    readable: Tensor  # (N,) bool


class KnownFeatures(NamedTuple):
    """Features of some images of a set, from an earlier state of it."""

    places: Tensor  # (n,) of the images in the set
    features: ImageFeatures  # theirs


def allocate_in_memory(shape: Sequence[int]) -> Tensor:
    """A tensor in single precision, or if it is large in half precision."""
    return torch.empty(*shape, dtype=torch.float16 if is_large(shape) else torch.float32)


def allocate_in_single_precision(shape: Sequence[int]) -> Tensor:
    return torch.empty(*shape)


def is_large(shape: Sequence[int]) -> bool:
    return math.prod(shape) >= LARGE


@dataclass(frozen=True)
class FeatureCache:
    """One safetensors file per key; large features go into a .npy beside it; without a folder nothing is cached.

    by_image: features are also found by the keys of single images, for a set of files of which some come, go or change
    """

    folder: Path | None
    by_image: bool = False

    def file(self, kind: str, key: dict[str, Any]) -> tuple[Path, str]:
        """The file of a key, and the description that must stand in it."""
        assert self.folder is not None
        about = json.dumps({"format": FORMAT, "kind": kind} | key, sort_keys=True)
        return self.folder / f"{kind}-{hashlib.sha256(about.encode()).hexdigest()[:20]}.safetensors", about

    def find(self, kind: str, key: dict[str, Any]) -> ImageFeatures | None:
        """The features cached for this key; None if there are none, or they are damaged."""
        return None if self.folder is None else _read(*self.file(kind, key))

    def get_or_compute(
        self,
        kind: str,
        key: dict[str, Any],
        compute: Callable[..., ImageFeatures],
        image_keys: Callable[[], Sequence[str]] = tuple,
    ) -> ImageFeatures:
        """The features cached for this key, else those that `compute` gives.

        kind: "features" or "representations"; the start of the file's name
        key: everything they depend on, as plain data
        compute: takes a function that makes the tensor to write the features to, and perhaps `known`, `KnownFeatures`
        image_keys: gives a key for each image, as `hirl.data.sources.identity.image_keys` does, or none; for `by_image`
        """
        if self.folder is None:
            return compute(allocate_in_memory if kind == "features" else allocate_in_single_precision)
        known = self.find(kind, key)
        if known is not None:
            return known
        from safetensors.torch import save_file

        if not can_keep(self.folder):
            return FeatureCache(None).get_or_compute(kind, key, compute)
        file, about = self.file(kind, key)
        keys = image_keys() if self.by_image else ()
        earlier = self._earlier(kind, key, keys) if keys else None
        with _on_disk(_rows_file(file)) as mapped:
            allocate = mapped if kind == "features" else allocate_in_single_precision
            features = compute(allocate) if earlier is None else compute(allocate, known=earlier)
            on_disk = features.rows.dtype == torch.float16
            tensors = {"readable": features.readable}
            if keys:
                tensors["image_keys"] = _packed(keys)
            if not on_disk:
                tensors["features"] = features.rows.contiguous()
        with atomic_write(file, checksum=True) as aside:
            save_file(tensors, aside, metadata={"about": f"{CHECKSUM} {about}"})
        return ImageFeatures(map_rows(_rows_file(file)), features.readable) if on_disk else features

    def _earlier(self, kind: str, key: dict[str, Any], image_keys: Sequence[str]) -> KnownFeatures | None:
        """What the newest file for other images has of these; None if it has nothing.

        Only the newest: whoever adds images one by one leaves many files.
        """
        from safetensors import SafetensorError, safe_open

        assert self.folder is not None
        wanted = json.loads(self.file(kind, key)[1]) | {"images": None}
        files = sorted(self.folder.glob(f"{kind}-*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        for file in reversed(files):
            try:
                with safe_open(file, framework="pt") as opened:
                    about = (opened.metadata() or {}).get("about", "").partition(" ")[2]
                    if json.loads(about) | {"images": None} != wanted:
                        continue
                    packed = opened.get_tensor("image_keys")
            except (SafetensorError, OSError, ValueError):  # damaged, or without keys
                continue
            features = _read(file, about)
            if features is None:
                return None
            rows = {bytes(one): row for row, one in enumerate(packed.numpy())}
            pairs = [(place, rows.get(bytes.fromhex(one))) for place, one in enumerate(image_keys)]
            known = torch.tensor([(place, row) for place, row in pairs if row is not None], dtype=torch.int64)
            if not len(known):
                return None
            places, kept = known.unbind(1)
            return KnownFeatures(places, ImageFeatures(features.rows[kept], features.readable[kept]))
        return None


def _packed(image_keys: Sequence[str]) -> Tensor:
    """(N, bytes) of keys in hexadecimal digits."""
    return torch.frombuffer(bytearray.fromhex("".join(image_keys)), dtype=torch.uint8).view(len(image_keys), -1)


def can_keep(folder: Path) -> bool:
    """Make the folder; False, with a warning, if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_parent(folder / "features")
    except (OSError, ValueError):
        warnings.warn(f"nothing is kept for the next time: {str(folder)!r} cannot be written to", stacklevel=2)
        return False
    return True


@contextmanager
def _on_disk(file: Path) -> Iterator[Allocate]:
    """Yield a function that gives a tensor in `file` if it is large, which replaces an older file on success."""
    with ExitStack() as stack:

        def allocate(shape: Sequence[int]) -> Tensor:
            if not is_large(shape):
                return allocate_in_memory(shape)
            aside = stack.enter_context(atomic_write(file, checksum=True, needed=2 * math.prod(shape)))
            rows = np.lib.format.open_memmap(aside, "w+", dtype=np.float16, shape=tuple(shape))
            if hasattr(os, "posix_fallocate"):  # or a full disk would kill the process when a page is written
                with aside.open("r+b") as opened:
                    os.posix_fallocate(opened.fileno(), 0, aside.stat().st_size)
            return torch.from_numpy(rows)

        yield allocate


def _rows_file(file: Path) -> Path:
    return file.with_suffix(".npy")


def read_only_tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor, which nobody may write to, without torch's warning about that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def map_rows(file: Path) -> Tensor:
    """The array in a .npy file, memory-mapped."""
    return read_only_tensor(np.load(file, mmap_mode="r", allow_pickle=False))


def _read(file: Path, about: str) -> ImageFeatures | None:
    """The features in a file with exactly this key; None if there is no such file or it is damaged."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        verify(file, required=True)
        with safe_open(file, framework="pt") as opened:
            if (opened.metadata() or {}).get("about", "").partition(" ")[2] != about:
                return None
            readable = opened.get_tensor("readable")
            inside = "features" in opened.keys()  # noqa: SIM118 (not a dict)
            if not inside:
                verify(_rows_file(file), required=True)
            rows = opened.get_tensor("features") if inside else map_rows(_rows_file(file))
    except (SafetensorError, OSError, ValueError) as error:
        reason = str(error) if isinstance(error, Damaged) else f"{str(file)!r} is damaged"
        warnings.warn(f"{reason}; the features are computed again", stacklevel=2)
        return None
    return ImageFeatures(rows, readable) if len(rows) == len(readable) else None
