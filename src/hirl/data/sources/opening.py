"""The entry to all sources: recognises the kind of source and opens it as an indexed set of images."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hirl.data.sources.arrays import ArrayImages, as_pixels, from_arrays, open_npz
from hirl.data.sources.decode import is_image_name
from hirl.data.sources.escape import one_line
from hirl.data.sources.hugging_face import PARQUET, is_hugging_face, open_hugging_face, open_parquet, open_saved
from hirl.data.sources.idx import is_idx_name, open_idx
from hirl.data.sources.image_folder import open_image_folder
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.listed import find_lists, open_listed
from hirl.data.sources.scan import scan
from hirl.data.sources.shard_index import is_url
from hirl.data.sources.shards import COMPRESSED, SHARDS, open_shards
from hirl.data.sources.splits import choose_split, no_splits
from hirl.data.sources.torchvision_sets import KNOWN, known_name, open_torchvision
from hirl.files import expanded

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_SHAPES, _SHAPES_SIZE = "shapes", 32
_SHAPES_NAME = re.compile(rf"{_SHAPES}(-(?P<size>\d+))?")  # shapes-64: drawn at 64 pixels
_BRACES = re.compile(r"(?P<before>[^{}]*)\{(?P<inside>[^{}]+)\}(?P<after>.*)")


def open_images(
    source: Any,
    *,
    split: str | None = None,
    channels: int = 3,
    labelled: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> ImageSet:
    """Open a path, a URL of shards, the name of a data set, arrays, or an object of the library `datasets`.

    Args:
        source: The path, URL, name, arrays or object. A path or URL of shards may have parts to expand.
        split: train, val, test, ...; by default the training split, if there are several. If only a test split is held
            out, val means that one.
        channels: 3, or 1 for greyscale.
        labelled: For folders: None takes labels from folder names if there are any, False never, True requires them.
        root: For torchvision's data sets: the folder that holds them; `source` is then always a name.
        download: For torchvision's data sets: whether to download a missing set.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels!r}, but must be 3 (colour) or 1 (greyscale)")
    if not isinstance(source, str | os.PathLike):
        return _open_object(source, split, channels)
    text = os.fspath(source)
    if not text:  # an unset variable of a shell; as a path it would be the current folder
        raise ValueError("data is '', but must be a path or the name of a data set: the current folder is .")
    path = expanded(text)
    drawn = _SHAPES_NAME.fullmatch(text)
    if drawn and root is None and not path.exists():
        return _open_shapes(int(drawn["size"] or _SHAPES_SIZE), split, channels)
    name = known_name(text)
    if root is not None or (name is not None and not path.exists()):
        if name is None:
            raise ValueError(f"{text!r} is not the name of a data set: with root= choose one of {', '.join(KNOWN)}")
        place = None if root is None else expanded(root)
        return open_torchvision(name, root=place, split=split, download=download, channels=channels)
    if path.is_dir():
        return _open_folder(path, split, channels, labelled, hides=drawn is not None or name is not None)
    if not path.exists():
        if is_url(text) or any(mark in text for mark in "{*?"):
            return _open_pattern(text, split, channels)
        raise FileNotFoundError(_missing(text))
    if path.suffix.lower() == ".npz":
        return open_npz(path, split=split, channels=channels)
    if path.name.lower().endswith((*SHARDS, *COMPRESSED)):
        return open_shards(str(path), [str(path)], split=split, channels=channels)
    if path.suffix.lower() == PARQUET:
        return open_parquet(one_line(text), [str(path)], split=split, channels=channels)
    raise ValueError(f"{one_line(text)} is not a set of images: pass a folder, a .npz or .parquet file, or tar shards")


def _open_pattern(text: str, split: str | None, channels: int) -> ImageSet:
    """Open a URL, or a text with parts to expand: `train-{0000..0146}.tar`, `train-*.tar`."""
    root, found = _find_files(text, (*SHARDS, *COMPRESSED, PARQUET))
    shards = [file for file in found if not file.lower().endswith(PARQUET)]
    if shards:
        return open_shards(root, shards, split=split, channels=channels)
    if found:
        return open_parquet(one_line(text), found, split=split, channels=channels)
    raise ValueError(f"{one_line(text)} is neither a path nor leads to any tar shard or parquet file")


def _find_files(text: str, suffixes: tuple[str, ...]) -> tuple[str, list[str]]:
    """The files that a pattern or the URL of a folder stands for, two deep in a folder, and the folder they are in.

    All are local paths or URLs. The folder of a pattern is what comes before its first part to expand.
    """
    from fsspec.core import url_to_fs

    found: list[str] = []
    before = re.split(r"[{*?]", text)[0]
    try:
        for one in _expanded(text):
            files, path = url_to_fs(one)
            if "*" in path or "?" in path:
                names = files.glob(path)
            elif path.lower().endswith(suffixes):
                names = [path]
            else:
                names = files.find(path, maxdepth=2)
            found += [_address(files, name) for name in names if name.lower().endswith(suffixes)]
        files, path = url_to_fs(before if before == text else before.rpartition("/")[0] or ".")
    except (ValueError, ImportError, OSError) as error:
        raise ValueError(f"{one_line(text)} cannot be opened: {error}") from error
    return _address(files, path), list(dict.fromkeys(found))


def _address(files: AbstractFileSystem, path: str) -> str:
    return str(files.unstrip_protocol(path)).removeprefix("file://")


def _expanded(text: str) -> Iterator[str]:
    """`a-{08..11}.tar` is a-08.tar to a-11.tar, `{a,b}.tar` is a.tar and b.tar."""
    found = _BRACES.fullmatch(text)
    if found is None:
        yield text
        return
    inside = re.fullmatch(r"(\d+)\.\.(\d+)", found["inside"])
    parts = found["inside"].split(",")
    if inside:
        first, last = int(inside[1]), int(inside[2])
        parts = [f"{number:0{len(inside[1])}}" for number in range(first, last + 1)]
    for part in parts:
        yield from _expanded(f"{found['before']}{part}{found['after']}")


def _open_object(source: Any, split: str | None, channels: int) -> ImageSet:
    if isinstance(source, ImageSet):
        no_splits(split, name=source.name)
        if source.channels != channels:
            raise ValueError(f"channels is {channels}, but must be that of {source.name}, {source.channels}")
        return source
    if is_hugging_face(source):
        return open_hugging_face(source, split=split, channels=channels)
    images, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if isinstance(images, np.ndarray | Tensor):
        no_splits(split, name="the array")
        return from_arrays(images, labels, name="array", channels=channels)
    raise ValueError(
        f"the source of images is a {type(source).__name__}, but must be a path, a data set's name, an array, a pair "
        "(images, labels), or an object of the library datasets"
    )


def _open_shapes(size: int, split: str | None, channels: int) -> ImageSet:
    from hirl.data.shapes import Shapes

    drawn = Shapes(size=size, split=choose_split(split, ("train", "val"), name=_SHAPES))
    if channels == drawn.channels:
        return drawn
    pixels = as_pixels(drawn.pixels, channels=channels, name=drawn.name)
    return ArrayImages(name=drawn.name, pixels=pixels, labels=drawn.labels, label_names=drawn.label_names)


def _open_folder(path: Path, split: str | None, channels: int, labelled: bool | None, *, hides: bool) -> ImageSet:
    """Open a folder by its content: images at any depth, else other files at the top or one folder below.

    hides: the folder has the name of a data set, which may have been meant instead.
    """
    found = scan(path)
    top = found.get("", [])
    if "dataset_dict.json" in top or {"dataset_info.json", "state.json"} <= set(top):
        return open_saved(path, split=split, channels=channels)
    if any(map(is_idx_name, top)):
        return open_idx(path, top, split=split, channels=channels)
    with os.scandir(path) as entries:  # a scan does not list text files, of which there may be one per image
        lists = find_lists(path, [entry.name for entry in entries if not is_image_name(entry.name) and entry.is_file()])
    if lists:
        return open_listed(path, lists, split=split, channels=channels)
    images = {folder: list(filter(is_image_name, names)) for folder, names in found.items()}
    images = {folder: names for folder, names in images.items() if names}
    if not images:
        near = [(folder, name) for folder, names in found.items() if "/" not in folder for name in names]
        shards = [str(path / folder / name) for folder, name in near if name.lower().endswith((*SHARDS, *COMPRESSED))]
        if shards:
            return open_shards(str(path), shards, split=split, channels=channels)
        if any(name.lower().endswith(PARQUET) for _, name in near):
            return open_parquet(one_line(str(path)), path, split=split, channels=channels)
        instead = (
            ", which takes precedence over the data set of that name: rename it or start elsewhere" if hides else ""
        )
        raise ValueError(f"there is no image in the folder {one_line(str(path))}{instead}")
    return open_image_folder(path, images, split=split, channels=channels, labelled=labelled)


def _missing(text: str) -> str:
    close = difflib.get_close_matches(text.lower(), [_SHAPES, *KNOWN], n=1)
    hint = f": did you mean {close[0]}?" if close else f" (data sets known by name: {_SHAPES}, {', '.join(KNOWN)})"
    return f"{one_line(text)!r} is neither a path nor the name of a data set{hint}"
