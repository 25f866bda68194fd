"""The index of a tar shard: where each image lies in it, and its label. Made once and cached.

The layout is that of webdataset: files with equal names up to the first dot belong together. `.cls` holds the class of
the images beside it, or `.json` does under `label` or `cls`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from hirl.data.sources.decode import is_image_name
from hirl.data.sources.escape import one_line
from hirl.files import atomic_write, cache_folder

_VERSION = 1
_LARGEST_LABEL = 1 << 20  # bytes of a .cls or .json file
_LABEL_KEYS = ("label", "cls")


@dataclass(frozen=True)
class ShardIndex:
    """The images of a shard in their order."""

    names: list[str]
    offsets: list[int]  # of the first byte of each image
    sizes: list[int]
    times: list[float]  # of modification, as the archive has them
    labels: list[int | str | None]


def is_url(shard: str) -> bool:
    return "://" in shard


def read_index(shard: str) -> ShardIndex:
    """The index of a shard, a local path or a URL for fsspec; from the cache if the shard has not changed."""
    identity = _identity(shard)
    cache = cache_folder() / "shards" / f"{hashlib.sha256(os.fsencode(identity)).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):  # absent or damaged: it is made again
        stored = json.loads(cache.read_text(encoding="utf-8"))
        if stored.pop("version") == _VERSION:
            return ShardIndex(**stored)
    index = _make_index(shard)
    with suppress(OSError, ValueError):  # without write access the next start takes longer, nothing else
        cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(cache) as aside:
            aside.write_text(json.dumps({"version": _VERSION, **asdict(index)}), encoding="utf-8")
    return index


def _identity(shard: str) -> str:
    """Changes whenever the file does."""
    if is_url(shard):
        from fsspec.core import url_to_fs

        files, path = url_to_fs(shard)
        return f"{shard}\0{files.ukey(path)}"
    status = Path(shard).stat()
    return f"{os.path.realpath(shard)}\0{status.st_size}\0{status.st_mtime_ns}"


def _open(shard: str) -> IO[bytes]:
    if is_url(shard):
        from fsspec.core import url_to_fs

        files, path = url_to_fs(shard)
        return files.open(path, "rb")
    return Path(shard).open("rb")


def _make_index(shard: str) -> ShardIndex:
    """Read the headers of the archive, and the labels."""
    name = one_line(shard)
    index = ShardIndex([], [], [], [], [])
    keys: list[str] = []
    label_of: dict[str, int | str] = {}
    with _open(shard) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for entry in archive:
                    archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header
                    path = PurePosixPath(entry.name)
                    # nothing is unpacked, but such a name indicates a malicious archive
                    if path.is_absolute() or ".." in path.parts:
                        raise ValueError(f"the member {one_line(entry.name)!r} of {name} points outside the archive")
                    if not entry.isreg() or path.name.startswith("."):
                        continue
                    key, _, kind = path.name.partition(".")
                    key = str(path.parent / key)
                    if is_image_name(path.name):
                        keys.append(key)
                        index.names.append(entry.name)
                        index.offsets.append(entry.offset_data)
                        index.sizes.append(entry.size)
                        index.times.append(entry.mtime)
                    elif kind.lower() in _LABELS and entry.size <= _LARGEST_LABEL:
                        member = archive.extractfile(entry)
                        label = _LABELS[kind.lower()](b"" if member is None else member.read())
                        if label is not None and (kind.lower() == "cls" or key not in label_of):
                            label_of[key] = label
                end = archive.offset
            file.seek(end)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes damage after the first file for the end
                raise tarfile.ReadError("invalid header")
        except (tarfile.TarError, EOFError) as error:
            if not keys and not label_of:
                raise ValueError(f"{name} is not a tar file: {error}") from error
            raise ValueError(
                f"{name} is damaged or cut short after {len(keys):,} images ({error}): copy it again, or remove it"
            ) from error
    index.labels.extend(label_of.get(key) for key in keys)
    return index


def _class_text(data: bytes) -> int | str | None:
    text = data.decode(errors="replace").strip()
    return int(text) if text.isdecimal() else text or None


def _class_in_json(data: bytes) -> int | str | None:
    try:
        found: Any = json.loads(data)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    labels = [found[key] for key in _LABEL_KEYS if isinstance(found.get(key), int | str)]
    return labels[0] if labels else None


_LABELS: dict[str, Callable[[bytes], int | str | None]] = {"cls": _class_text, "json": _class_in_json}
