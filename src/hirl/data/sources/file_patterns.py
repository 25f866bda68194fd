"""Several files by one text: a URL for fsspec, or a path with parts to expand (`train-{0000..0146}.tar`, `*.tar`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hirl.data.sources.escape import one_line
from hirl.data.sources.shard_index import is_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_BRACES = re.compile(r"(?P<before>[^{}]*)\{(?P<inside>[^{}]+)\}(?P<after>.*)")


def is_pattern(text: str) -> bool:
    """Whether `text` is a URL or has a part to expand: `train-{0000..0146}.tar`, `train-*.tar`."""
    return is_url(text) or any(mark in text for mark in "{*?")


def find_files(text: str, suffixes: tuple[str, ...]) -> tuple[str, list[str]]:
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
