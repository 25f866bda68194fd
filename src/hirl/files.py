"""Atomic writes: a reader sees the old content of a file or the new one, never a part of either."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside `path` to write to. On success it replaces `path`, on failure it is deleted."""
    target = Path(path)
    check_writable(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    aside = Path(name)
    os.close(handle)
    try:
        yield aside
        _to_disk(aside)
        aside.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        aside.replace(target)
        _to_disk(target.parent)
    finally:
        aside.unlink(missing_ok=True)


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
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a new folder beside `path` to fill; on success it takes `path`'s place, on failure it goes.

    A folder that lies at `path` is removed after the new one has taken its place.
    """
    target = Path(path)
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
        _to_disk(target.parent)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    finally:
        for left_over in (aside, old):
            shutil.rmtree(left_over, ignore_errors=True)
