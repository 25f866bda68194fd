"""Images in one array: checked once, kept in memory as (N, C, H, W) uint8."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.data.sources.folder_labels import given_labels
from hirl.data.sources.image_set import ImageSet, LabelNames
from hirl.data.sources.splits import choose_split, no_splits, usual_name

_CHUNK = 1024  # images converted at a time, to limit the memory of wider intermediate types
_IMAGE_KEYS = ("images", "image", "x", "data", "arr_0")
_LABEL_KEYS = ("labels", "label", "y", "targets", "arr_1")


class ArrayImages(ImageSet):
    """Equal-sized images in memory; `pixels` holds all of them."""

    pixels: Tensor

    def __init__(
        self, *, name: str, pixels: Tensor, labels: Tensor | None = None, label_names: LabelNames = ()
    ) -> None:
        super().__init__(name=name, channels=pixels.shape[1], labels=labels, label_names=label_names, pixels=pixels)

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:  # noqa: ARG002 - nothing to decode
        self._check(index)
        return self.pixels[index]


def from_arrays(images: Any, labels: Any = None, *, name: str, channels: int) -> ArrayImages:
    """`images` as a numpy array or torch tensor, `labels` as for `labels.given_labels`."""
    pixels = as_pixels(images, channels=channels, name=name)
    if labels is None:
        return ArrayImages(name=name, pixels=pixels)
    table, names = given_labels(labels, count=len(pixels), name=name)
    return ArrayImages(name=name, pixels=pixels, labels=table, label_names=names)


def as_pixels(images: np.ndarray | Tensor, *, channels: int, name: str) -> Tensor:
    """(N, C, H, W) uint8 from (N, H, W), (N, H, W, C) or (N, C, H, W) with 1, 3 or 4 channels, 8 or 16 bits.

    The memory is shared with `images` if no conversion is needed.
    """
    array = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    if array.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"the images of {name} are of type {array.dtype}, but must be uint8 (0 to 255) or uint16 (0 to 65535)"
        )
    array = _channels_first(array, name)
    if 0 in array.shape:
        raise ValueError(f"the images of {name} have shape {array.shape}, but must not be empty")
    if array.dtype == np.uint8 and array.shape[1] == channels:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    pixels = torch.empty((len(array), channels, *array.shape[2:]), dtype=torch.uint8)
    for start in range(0, len(array), _CHUNK):
        chunk = array[start : start + _CHUNK].astype(np.int32)
        pixels[start : start + _CHUNK] = torch.from_numpy(_converted(chunk, array.dtype == np.uint16, channels))
    return pixels


def _channels_first(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim == 3:
        return array[:, None]
    first, last = (array.ndim == 4 and array.shape[axis] in (1, 3, 4) for axis in (1, 3))
    if first == last:
        raise ValueError(
            f"the images of {name} have shape {array.shape}, but must have (N, H, W), (N, H, W, C) or (N, C, H, W) "
            "with C = 1, 3 or 4 in one place"
        )
    return array if first else array.transpose(0, 3, 1, 2)


def _converted(values: np.ndarray, sixteen_bits: bool, channels: int) -> np.ndarray:
    """(n, C, H, W) int32 as uint8 with `channels` channels, by the decoder's rules."""
    if sixteen_bits:
        values = (values.astype(np.int64) * 255 + 32767) // 65535
    if values.shape[1] == 4:  # over white
        alpha = values[:, 3:]
        values = (values[:, :3] * alpha + 255 * (255 - alpha) + 127) // 255
    if values.shape[1] == 3 and channels == 1:  # luma of ITU-R 601, in Pillow's integers
        values = (values[:, :1] * 19595 + values[:, 1:2] * 38470 + values[:, 2:] * 7471 + 32768) >> 16
    if values.shape[1] == 1 and channels == 3:
        values = values.repeat(3, axis=1)
    return values.astype(np.uint8)


def open_npz(path: Path, *, split: str | None, channels: int) -> ArrayImages:
    """`images` and `labels`, or a pair per split: `train_images`, `val_images`, ... or `x_train`, ..."""
    name = one_line(str(path))
    keys = list(_load_npz(path, name))
    pairs = _pairs(keys)
    if not pairs:
        raise ValueError(
            f"{name} holds {', '.join(map(repr, keys)) or 'nothing'}, but its images must be named "
            f"{', '.join(map(repr, _IMAGE_KEYS))}, or 'train_images' and so on"
        )
    if None in pairs:
        no_splits(split, name=name)
        wanted = pairs[None]
    else:
        chosen = choose_split(split, [part for part in pairs if part], name=name)
        wanted = pairs[chosen]
        name = f"{name}/{chosen}"
    arrays = _load_npz(path, name, wanted)
    return from_arrays(arrays[wanted[0]], arrays.get(wanted[1]), name=name, channels=channels)


def _load_npz(path: Path, name: str, wanted: tuple[str, ...] = ()) -> dict[str, np.ndarray | None]:
    """All keys of the file, with the arrays of the wanted ones."""
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array: load it and pass the array")
        with stored:
            return {key: stored[key] if key in wanted else None for key in stored.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{name} cannot be read as .npz: {one_line(str(error)).rstrip('.')}") from error


def _pairs(keys: list[str]) -> dict[str | None, tuple[str, str]]:
    """Per split (None: the file has no splits) the keys of images and labels ("" for none)."""
    found: dict[str | None, dict[str, str]] = {}
    for key in keys:
        parts = key.lower().split("_")
        split = next((usual for part in parts if (usual := usual_name(part))), None)
        rest = "_".join(part for part in parts if not usual_name(part))
        kind = "images" if rest in _IMAGE_KEYS else "labels" if rest in _LABEL_KEYS else None
        if kind:
            found.setdefault(split, {}).setdefault(kind, key)
    return {split: (pair["images"], pair.get("labels", "")) for split, pair in found.items() if "images" in pair}
