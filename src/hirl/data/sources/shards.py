"""Tar shards in webdataset's layout: images read at any place of local files, or of files behind a URL."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import FileIO

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources.decode import MAX_BYTES
from hirl.data.sources.escape import one_line
from hirl.data.sources.file_images import PackedNames
from hirl.data.sources.folder_labels import given_labels
from hirl.data.sources.image_set import BadImage, ImageSet, LabelNames
from hirl.data.sources.shard_index import ShardIndex, is_url, read_index
from hirl.data.sources.splits import are_splits, choose_split, leading_split, no_splits

SHARDS = (".tar",)
COMPRESSED = (".tar.gz", ".tgz")
_OPEN_FILES = 256  # of a process; a system usually allows 1,024
_THREADS = 8  # that make indexes; those of remote shards wait for the network


class ShardImages(ImageSet):
    """Images by their place in shards. A process keeps the local shards that it reads open."""

    def __init__(
        self,
        *,
        name: str,
        shards: Sequence[str],
        indexes: Sequence[ShardIndex],
        channels: int = 3,
        labels: Tensor | None = None,
        label_names: LabelNames = (),
    ) -> None:
        super().__init__(name=name, channels=channels, labels=labels, label_names=label_names)
        self._shards = tuple(shards)
        self._shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), [len(one.names) for one in indexes])  # (N,)
        self._offsets = np.concatenate([np.array(one.offsets, dtype=np.int64) for one in indexes])  # (N,)
        self._sizes = np.concatenate([np.array(one.sizes, dtype=np.int64) for one in indexes])  # (N,)
        self._names = PackedNames(member for one in indexes for member in one.names)
        # The archives' own headers, so that a copy of the shards elsewhere is the same set.
        content = hashlib.sha256()
        for shard, index in zip(shards, indexes, strict=True):
            members = zip(index.names, index.sizes, index.times, index.labels, strict=True)
            content.update(repr((shard.rpartition("/")[2], list(members))).encode(errors="surrogateescape"))
        self.fingerprint = content.hexdigest()

    def __len__(self) -> int:
        return len(self._offsets)

    def path(self, index: int) -> str:
        return f"{self._shards[self._shard_of[index]]}/{self._names[index]}"

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:
        self._check(index)
        size = int(self._sizes[index])
        if size > MAX_BYTES:
            raise BadImage(index, self.path(index), f"{size:,} bytes exceed the limit of {MAX_BYTES:,}")
        try:
            data = _read(self._shards[self._shard_of[index]], int(self._offsets[index]), size)
        except OSError as error:
            raise BadImage(index, self.path(index), error.strerror or type(error).__name__) from error
        if len(data) < size:
            raise BadImage(index, self.path(index), "the shard has become shorter")
        return self._decode(data, index, shorter)


@lru_cache(maxsize=_OPEN_FILES)
def _opened(shard: str) -> FileIO:
    return FileIO(shard)


def _read(shard: str, offset: int, size: int) -> bytes:
    if not is_url(shard):
        file = _opened(shard)  # held while it is read: another thread may make it leave the cache
        return os.pread(file.fileno(), size, offset)
    from fsspec.core import url_to_fs

    files, path = url_to_fs(shard)  # fsspec keeps one connection per process
    data: bytes = files.cat_file(path, start=offset, end=offset + size)
    return data


def open_shards(root: str, shards: Sequence[str], *, split: str | None, channels: int) -> ImageSet:
    """`shards` are `root` or below it; their split is given by folder (`train/`) or name (`train-0000.tar`).

    Classes are numbered over all splits, so that train and val agree.
    """
    name = one_line(root)
    shards = sorted(shards, key=os.fsencode)
    for shard in shards:
        if shard.lower().endswith(COMPRESSED):
            raise ValueError(
                f"{one_line(shard)} is compressed, so an image in it cannot be read without those before it: "
                "decompress the shards (gunzip); images are compressed already"
            )
    indexes = _indexes(shards, name)
    if not any(one.names for one in indexes):
        raise ValueError(f"there is no image in the shards of {name}")
    groups: dict[str, list[int]] = {}
    for number, shard in enumerate(shards):
        groups.setdefault(_split_of(shard, root), []).append(number)
    chosen = list(range(len(shards)))
    if are_splits(groups):
        part = choose_split(split, groups, name=name)
        chosen, name = groups[part], f"{name}/{part}"
    else:
        no_splits(split, name=name)
    labels, label_names = _labels(indexes, chosen, name)
    return ShardImages(
        name=name,
        shards=[shards[number] for number in chosen],
        indexes=[indexes[number] for number in chosen],
        channels=channels,
        labels=labels,
        label_names=label_names,
    )


def _split_of(shard: str, root: str) -> str:
    folders = shard.removeprefix(root.rstrip("/")).strip("/").split("/")[:-1] if shard != root else []
    return (folders[-1] if folders else leading_split(shard.rpartition("/")[2])) or ""


def _indexes(shards: Sequence[str], name: str) -> list[ShardIndex]:
    """The indexes of the shards; processes that start together make them in different orders, and share the work."""
    from rich.console import Console
    from rich.progress import track

    order = list(range(len(shards)))
    random.Random(os.getpid()).shuffle(order)
    console = Console(stderr=True)
    show = {"console": console, "transient": True, "disable": not console.is_terminal or len(shards) < 2}
    found: dict[int, ShardIndex] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        try:
            indexes = threads.map(read_index, [shards[number] for number in order])
            for number, index in zip(order, track(indexes, f"Indexing {name}", len(shards), **show), strict=True):  # type: ignore[arg-type]
                found[number] = index
        except OSError as error:
            threads.shutdown(cancel_futures=True)
            raise ValueError(f"the shards of {name} cannot be read: {error}") from error
    return [found[number] for number in range(len(shards))]


def _labels(indexes: Sequence[ShardIndex], chosen: Sequence[int], name: str) -> tuple[Tensor | None, LabelNames]:
    """Class numbers, or names if there are any, (n, 1); None unless every image of the chosen shards has one."""
    mine = [label for number in chosen for label in indexes[number].labels]
    if not mine or any(label is None for label in mine):
        return None, ()
    known = [label for one in indexes for label in one.labels if label is not None]
    if all(isinstance(label, int) for label in known):
        numbers = torch.tensor([[int(label)] for label in mine if label is not None])
        _, label_names = given_labels(np.array(known), count=len(known), name=name)
        return numbers, label_names
    classes = sorted({str(label) for label in known})
    number_of = {label: number for number, label in enumerate(classes)}
    return torch.tensor([[number_of[str(label)]] for label in mine]), (tuple(map(one_line, classes)),)
