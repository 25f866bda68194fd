"""Folders that hirl writes: runs, work on images without a run, pages. Pictures in them are not images of a set."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

CONFIG, ABOUT = "config.yaml", "about.json"  # of a run, as in `RunFolder`
OWNER = "belongs_to.json"  # of the work on images without a run
PAGE, SHEETS = "index.html", "images"  # of a page; the latter is a folder of thumbnails
GENERATOR = '<meta name="generator" content="hirl">'
OWN_NAMES = frozenset((CONFIG, ABOUT, OWNER, PAGE, SHEETS))


def is_own(folder: Path, names: Set[str]) -> bool:
    """Whether hirl has written a folder; `names`: those of OWN_NAMES in it. Only what looks like a page is opened."""
    return OWNER in names or {CONFIG, ABOUT} <= names or ({PAGE, SHEETS} <= names and is_page(folder))


def is_page(folder: Path) -> bool:
    """Whether a folder holds a page of hirl."""
    try:
        with (folder / PAGE).open("rb") as file:
            return GENERATOR.encode() in file.read(1000)
    except OSError:
        return False
