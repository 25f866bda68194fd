"""Atomic writes: a reader sees the old content of a file or the new one, never a part of either.

A file that figures are computed from carries a checksum of the rest of its bytes, which is verified when it is read.
Formats with room for text, such as JSON or the metadata of safetensors and parquet, have `CHECKSUM` at their beginning
or end, where `atomic_write` fills it in; to others it is appended, behind the end of a zip or npy file. Files without
one, such as those of other programs, are read unverified.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHECKSUM = f"hirl-sha256:{'0' * 64}"
_KEY = "checksum"  # of the checksum in JSON
_CHECKSUM = re.compile(rb"hirl-sha256:([0-9a-f]{64})")
_HEAD, _TAIL, _CHUNK = 1 << 20, 256, 1 << 20  # bytes: where a checksum may stand, and how much is hashed at a time
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# torch and safetensors raise errors of their own, without a number
_FULL_TEXTS = ("No space left", "File too large", "quota exceeded", "PytorchStreamWriter", "inline_container")


class Damaged(ValueError):  # noqa: N818
    """The content of a file is not what was written."""


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, checksum: bool = False, needed: int | None = None) -> Iterator[Path]:
    """Yield a temporary file beside `path` to write to. On success it replaces `path`, on failure it is deleted.

    checksum: fill in the checksum, or append it
    needed: the size of the file in bytes, if it is known, for the message about a full disk
    """
    target = Path(path)
    check_writable(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    aside = Path(name)
    os.close(handle)
    try:
        with full_disk_named(target, needed):
            yield aside
            if checksum:
                seal(aside)
            _to_disk(aside)
        aside.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        aside.replace(target)
        _to_disk(target.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def full_disk_named(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn any library's error about a full disk into an OSError that names the file and what to do."""
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in _FULL
        if not full and not any(text in str(error) for text in _FULL_TEXTS):
            raise
        free = f"{shutil.disk_usage(path.parent).free / 1e6:,.1f} MB are free"
        size = "" if needed is None else f", {needed / 1e6:,.1f} MB are needed"
        raise OSError(
            f"cannot write {str(path)!r}: the disk or your quota is full ({free}{size}); make room and repeat the "
            "command"
        ) from error


def verify(path: Path, *, required: bool = False) -> None:
    """Raise `Damaged` if the file has a checksum and the rest of its bytes do not match it.

    required: the file must have one, for all versions that wrote this format did: noise at the end of a file takes a
    checksum that stands there along
    """
    found = _find_checksum(path)
    if required and found is None:
        raise Damaged(f"{str(path)!r} is damaged: it has lost its checksum")
    if found is not None and found[1] != _digest(path, found[0]):
        raise Damaged(f"{str(path)!r} is damaged: its content does not match its checksum")


def write_json(path: Path, content: dict[str, Any] | list[dict[str, Any]], **options: Any) -> None:
    """Write plain data as JSON with a checksum, which is the first entry of the (first) dictionary.

    options: those of `json.dumps`
    """
    first, *others = content if isinstance(content, list) else [content]
    first = {_KEY: CHECKSUM} | first
    with atomic_write(path, checksum=True) as aside:
        written = [first, *others] if isinstance(content, list) else first
        aside.write_text(json.dumps(written, **options), encoding="utf-8")


def read_json(path: Path, *, required: bool = False) -> Any:
    """What `write_json` wrote, verified; a ValueError if the file is damaged or not JSON. `required`: see `verify`."""
    verify(path, required=required)
    found = json.loads(path.read_text(encoding="utf-8"))
    first = found[0] if isinstance(found, list) and found else found
    if isinstance(first, dict):
        first.pop(_KEY, None)
    return found


def seal(path: Path) -> None:
    """Fill the checksum in, at the end of the file unless it has room for it."""
    if _find_checksum(path) is None:
        with path.open("ab") as file:
            file.write(f"\n# {CHECKSUM}\n".encode())
    found = _find_checksum(path)
    assert found is not None
    digest = _digest(path, found[0])
    with path.open("r+b") as file:
        file.seek(found[0])
        file.write(digest)


def _find_checksum(path: Path) -> tuple[int, bytes] | None:
    """The place of the checksum's digits, and the digits."""
    with path.open("rb") as file:
        for start in (0, max(0, path.stat().st_size - _TAIL)):
            file.seek(start)
            if found := _CHECKSUM.search(file.read(_TAIL if start else _HEAD)):
                return start + found.start(1), found[1]
    return None


def _digest(path: Path, digits: int) -> bytes:
    """The checksum of all bytes but those at `digits`, where it stands itself."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for place, stop in ((0, digits), (digits + 64, path.stat().st_size)):
            file.seek(place)
            for start in range(place, stop, _CHUNK):
                digest.update(file.read(min(_CHUNK, stop - start)))
    return digest.hexdigest().encode()


def check_writable(path: Path) -> None:
    """Raise a ValueError if `path` cannot be written. Call it before the work whose result goes there."""
    if path.is_dir():
        raise ValueError(f"cannot write to {str(path)!r}: it is a folder, not a file")
    check_parent(path)


def check_parent(path: Path) -> None:
    """Raise a ValueError if nothing can be written beside `path`."""
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write {str(path)!r}: you may not write to the folder {str(path.parent)!r}")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:  # a file system that is read-only, or has no files of users
        why = error.strerror or type(error).__name__
        raise ValueError(f"cannot write {str(path)!r}: no file can be made in {str(path.parent)!r} ({why})") from error


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, replaced: Collection[str] | None = None) -> Iterator[Path]:
    """Yield a new folder beside `path` to fill. It replaces `path` on success and is deleted on failure.

    A folder that lies at `path` is removed after the new one has taken its place.

    replaced: names of what is removed with it; its other entries move to the new folder, unless they have been written
        anew. None for all
    """
    target = Path(path).resolve() if Path(path).is_symlink() else Path(path)
    if target.exists() and not target.is_dir():
        raise ValueError(f"cannot write the folder {str(target)!r}: it is a file")
    check_parent(target)
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".new"))
    old = aside.with_suffix(".old")
    try:
        yield aside
        aside.chmod(0o777 & ~_umask())
        if target.exists():
            target.rename(old)
        aside.rename(target)
        if replaced is not None and old.exists():
            for entry in old.iterdir():
                if entry.name not in replaced and not os.path.lexists(target / entry.name):
                    entry.rename(target / entry.name)
        shutil.rmtree(old, ignore_errors=True)  # not on failure: it may hold what has not been moved
        _to_disk(target.parent)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        elif old.exists():
            warnings.warn(f"some of what was in {str(target)!r} is in {str(old)!r} now", stacklevel=3)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with the home folder for `~`; unchanged if there is no such user, for ~old may be a name."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (`Path.expanduser` raises there)


def check_replaceable(folder: Path, is_own: Callable[[Path], bool], *, content: str) -> None:
    """Raise a ValueError if a folder may not be replaced, which may hold `content` alone.

    is_own: whether an entry, at any depth, is part of that content
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file, but must be a folder, or absent")
    entries = folder.rglob("*") if folder.exists() else ()
    other = next((entry for entry in entries if not is_own(entry)), None)
    if other is not None:
        raise ValueError(
            f"the folder {str(folder)!r} has other content, such as {str(other.relative_to(folder))!r}, but must be "
            f"empty or hold {content}, to be replaced: name another one"
        )


def missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that do not exist, from itself upwards."""
    return [one for one in (folder, *folder.parents) if not one.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of the folders, from the innermost on, in which there is nothing."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/hirl`, else `~/.cache/hirl`. Anything in it may be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hirl"
