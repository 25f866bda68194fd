"""Recursive listing of a folder, in the same order on every machine and cached for the next time.

The cache holds the files of each folder with the folder's times. A later scan compares these times and lists only the
folders that have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hirl.data.own_folders import OWN_NAMES, is_own
from hirl.data.sources.decode import HEIF, is_image_name
from hirl.data.sources.escape import one_line
from hirl.files import atomic_write, cache_folder

if TYPE_CHECKING:
    from rich.status import Status

_VERSION = 3
# Besides images: images that need another library, and files that identify a folder as another kind of set.
_OTHER_KINDS = (*HEIF, ".tar", ".tar.gz", ".tgz", ".parquet", "-ubyte", "-ubyte.gz")
_MARKS = ("dataset_dict.json", "dataset_info.json", "state.json")
# File systems have coarse clocks: a folder changed this shortly before it was listed may change again without new
# times, so such a listing is not reused.
SETTLED_NS = 2_000_000_000
_QUIET_SECONDS = 1.0
_REFRESH_SECONDS = 0.1
_IGNORED = ("__MACOSX",)

Times = tuple[int, int, int]


class Listing(NamedTuple):
    """The relevant files and the folders directly in one folder, in byte order of their names."""

    times: Times  # of modification and metadata change, and the inode
    settled: bool
    files: list[str]
    folders: list[str]


def scan(root: Path) -> dict[str, list[str]]:
    """The names of images and other relevant files per folder that has any, by its path from `root` ("" for itself).

    Hidden names are left out, and so are folders below `root` that hirl has written. Links are followed, except those
    that lead back to a folder above them.
    """
    cache = _cache_file(root)
    known = _read_cache(cache, root)
    listings: dict[str, Listing] = {}
    fresh = False
    todo: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    with closing(_Progress(root)) as progress:
        while todo:
            folder, above = todo.pop()
            path = root / folder
            try:
                status = path.stat()
            except FileNotFoundError:  # a link to a folder that has gone
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                continue
            times = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            listing = known.get(folder)
            if listing is None or not listing.settled or listing.times != times:
                listing = _list(path, times, progress, is_root=folder == "")
                fresh = True
            else:
                progress.found(len(listing.files))
            listings[folder] = listing
            below = above | {identity}
            todo.extend((f"{folder}/{name}" if folder else name, below) for name in reversed(listing.folders))
    if fresh:
        _write_cache(cache, root, listings)
    return {folder: listing.files for folder, listing in listings.items() if listing.files}


def _list(path: Path, times: Times, progress: _Progress, *, is_root: bool) -> Listing:
    settled = time.time_ns() - max(times[:2]) > SETTLED_NS
    files, folders, marks = [], [], set()
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _IGNORED:
                continue
            if entry.name in OWN_NAMES:
                marks.add(entry.name)
            if _leads_to(entry, os.DirEntry.is_dir):
                folders.append(entry.name)
            # a broken link is kept: it is reported when it is read, so no file is lost silently
            elif _is_of_interest(entry.name) and (_leads_to(entry, os.DirEntry.is_file) or entry.is_symlink()):
                files.append(entry.name)
                progress.found()
            # a link to a folder that is not there, as on a drive that is not mounted: when it comes back, the times of
            # this folder do not change
            elif entry.is_symlink() and not _leads_to(entry, os.DirEntry.is_file):
                settled = False
    if marks and not is_root and is_own(path, marks):
        return Listing(times, settled, [], [])
    return Listing(times, settled, sorted(files, key=os.fsencode), sorted(folders, key=os.fsencode))


def _leads_to(entry: os.DirEntry[str], kind: Callable[[os.DirEntry[str]], bool]) -> bool:
    """Whether an entry is of a kind or links to one; False for circular links."""
    try:
        return kind(entry)
    except OSError:
        return False


def _is_of_interest(name: str) -> bool:
    return is_image_name(name) or name.lower().endswith(_OTHER_KINDS) or name in _MARKS


def _cache_file(root: Path) -> Path:
    place = os.fsencode(os.path.realpath(root))
    return cache_folder() / "scans" / f"{hashlib.sha256(place).hexdigest()[:32]}.json"


def _read_cache(cache: Path, root: Path) -> dict[str, Listing]:
    """The listings of an earlier scan; empty if absent, damaged or of another version."""
    try:
        stored = json.loads(cache.read_text(encoding="utf-8"))
        if stored["version"] != _VERSION or stored["root"] != os.path.realpath(root):
            return {}
        return {
            folder: Listing((int(times[0]), int(times[1]), int(times[2])), settled is True, files, folders)
            for folder, (times, settled, files, folders) in stored["folders"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _write_cache(cache: Path, root: Path, listings: dict[str, Listing]) -> None:
    text = json.dumps({"version": _VERSION, "root": os.path.realpath(root), "folders": listings})
    with suppress(OSError, ValueError):  # without write access the next scan takes longer, nothing else
        cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(cache) as aside:
            aside.write_text(text, encoding="utf-8")


class _Progress:
    """A counter on the terminal that appears when a scan takes more than a second."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0
        self._next = time.monotonic() + _QUIET_SECONDS
        self._status: Status | None = None

    def found(self, count: int = 1) -> None:
        self._count += count
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REFRESH_SECONDS
        from rich.console import Console
        from rich.markup import escape

        text = f"Looking for images in {escape(one_line(str(self._root)))}: {self._count:,}"
        if self._status is not None:
            self._status.update(text)
        elif (console := Console(stderr=True)).is_terminal:
            self._status = console.status(text)
            self._status.start()

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
