"""Tar shards in webdataset's layout, read sequentially: a stream of images without an index."""

from __future__ import annotations

import hashlib
import os
import random
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from torch import Tensor

from hirl.data.sources.decode import MAX_BYTES, DecodeError, decode, is_image_name
from hirl.data.sources.escape import one_line
from hirl.data.sources.image_set import BadImage
from hirl.data.sources.skipped import Skipped
from hirl.data.sources.splits import are_splits, choose_split, leading_split, no_splits

SUFFIXES = (".tar", ".tar.gz", ".tgz")
_PLACES = 2**32  # more than a shard can hold images


@dataclass(frozen=True)
class StreamedImage:
    """`index` combines the shard's number and the position in it, so views do not depend on the reader."""

    index: int
    image: Tensor  # (C, H, W) uint8
    label: int | None  # from a `.cls` beside the image


@dataclass(frozen=True)
class _Record:
    index: int
    path: str
    data: bytes
    label: int | None
    problem: str = ""


@dataclass(frozen=True)
class _Member:
    key: str
    name: str
    data: bytes
    problem: str = ""


class ImageStream:
    """Images of tar shards, in an order that depends on (seed, epoch) only."""

    def __init__(self, *, name: str, shards: Sequence[Path], channels: int = 3) -> None:
        self.name = name
        self.shards = tuple(shards)
        self.channels = channels

    def read(
        self,
        *,
        seed: int,
        epoch: int,
        part: int = 0,
        parts: int = 1,
        buffer: int = 0,
        shorter: int | None = None,
        skipped: Skipped | None = None,
        strict: bool = False,
    ) -> Iterator[StreamedImage]:
        """One epoch of reader `part` of `parts` (ranks times workers): every parts-th shard of the epoch's order.

        Each image is read by exactly one reader. `buffer` images of a shard are shuffled at a time. A bad image is left
        out and added to `skipped`, or raised with `strict`.
        """
        if not 0 <= part < parts or parts > len(self.shards):
            raise ValueError(
                f"reader {part} of {parts} is not possible: {self.name} has {len(self.shards)} shard(s), and readers "
                "are numbered from 0 with at most one per shard."
            )
        for number in self.order(seed=seed, epoch=epoch)[part::parts]:
            shard = self.shards[number]
            draw = random.Random(_hash(seed, epoch, shard))
            for record in _mixed(_records(shard, number * _PLACES), draw, buffer):
                try:
                    yield StreamedImage(record.index, self._decode(record, shorter), record.label)
                except BadImage as bad:
                    if strict:
                        raise
                    if skipped is not None:
                        skipped.add(bad)

    def order(self, *, seed: int, epoch: int) -> list[int]:
        """The shards' numbers in this epoch's order."""
        return sorted(range(len(self.shards)), key=lambda number: _hash(seed, epoch, self.shards[number]))

    def _decode(self, record: _Record, shorter: int | None) -> Tensor:
        if record.problem:
            raise BadImage(record.index, record.path, record.problem)
        try:
            return decode(record.data, channels=self.channels, shorter=shorter)
        except DecodeError as error:
            raise BadImage(record.index, record.path, str(error)) from error


def open_shards(root: Path, shards: Sequence[Path], *, split: str | None, channels: int) -> ImageStream:
    """`shards` are in or below `root`; their split is given by folder (`train/`) or name (`train-0000.tar`)."""
    name = one_line(str(root))
    groups: dict[str, list[Path]] = {}
    for shard in sorted(shards, key=os.fsencode):
        folder = shard.parent.name if shard.parent != root else leading_split(shard.name)
        groups.setdefault(folder or "", []).append(shard)
    if root.is_dir() and are_splits(groups):
        part = choose_split(split, groups, name=name)
        shards, name = groups[part], f"{name}/{part}"
    else:
        no_splits(split, name=name)
        shards = [shard for group in groups.values() for shard in group]
    if not tarfile.is_tarfile(shards[0]):
        raise ValueError(f"{one_line(str(shards[0]))} is not a tar file.")
    return ImageStream(name=name, shards=shards, channels=channels)


def _hash(seed: int, epoch: int, shard: Path) -> bytes:
    """A hash of the shard's name, not its path: the order is the same wherever the shards are stored."""
    return hashlib.sha256(f"{seed}/{epoch}/".encode() + os.fsencode(shard.name)).digest()


def _mixed(records: Iterator[_Record], draw: random.Random, buffer: int) -> Iterator[_Record]:
    waiting: list[_Record] = []
    for record in records:
        if len(waiting) < buffer:
            waiting.append(record)
            continue
        if waiting:
            place = draw.randrange(len(waiting))
            record, waiting[place] = waiting[place], record
        yield record
    draw.shuffle(waiting)
    yield from waiting


def _records(shard: Path, first_index: int) -> Iterator[_Record]:
    """The images of a shard; consecutive files with equal names up to the first dot belong together."""
    index = first_index
    try:
        for _, group in groupby(_members(shard), key=lambda member: member.key):
            members = list(group)
            label, problem = _label(members)
            for member in members:
                if is_image_name(member.name):
                    path = f"{shard}/{member.name}"
                    yield _Record(index, path, member.data, label, member.problem or problem)
                    index += 1
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        yield _Record(index, str(shard), b"", None, f"the shard cannot be read further ({error})")


def _members(shard: Path) -> Iterator[_Member]:
    with tarfile.open(shard, "r|*") as archive:
        for entry in archive:
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header of the shard
            path = PurePosixPath(entry.name)
            # nothing is unpacked, but such a name indicates a malicious archive
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(
                    f"The member {one_line(entry.name)!r} of {one_line(str(shard))} points outside the archive."
                )
            if not entry.isreg() or path.name.startswith("."):
                continue
            key = str(path.parent / path.name.split(".")[0])
            if entry.size > MAX_BYTES:
                yield _Member(key, entry.name, b"", f"{entry.size:,} bytes exceed the limit of {MAX_BYTES:,}")
                continue
            file = archive.extractfile(entry)
            yield _Member(key, entry.name, file.read() if file is not None else b"")


def _label(members: Sequence[_Member]) -> tuple[int | None, str]:
    """The class number of the `.cls` file, if there is one, or the problem with it."""
    for member in members:
        if member.name.endswith(".cls"):
            text = member.data.strip()
            return (int(text), "") if text.isdigit() else (None, "its .cls file does not hold a class number")
    return None, ""
