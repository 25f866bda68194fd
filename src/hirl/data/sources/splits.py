"""Names of the splits of a data set (train, val, test), and choosing one of them."""

from __future__ import annotations

import re
from collections.abc import Collection

_ALIASES = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
# Many sets have a single held-out part and call it test: "val" then means that part.
_MEANS = {**_ALIASES, "val": _ALIASES["val"] + _ALIASES["test"]}


def usual_name(text: str) -> str | None:
    """train, val or test if `text` is a variant of it, else None."""
    return next((name for name, aliases in _ALIASES.items() if text.lower() in aliases), None)


def leading_split(file_name: str) -> str | None:
    """The split a file name starts with: `val-00003.tar` -> val."""
    prefix = re.match(r"[A-Za-z]+", file_name)
    return usual_name(prefix[0]) if prefix else None


def are_splits(folders: Collection[str]) -> bool:
    """Whether folder names are splits rather than classes, one of which may be called train.

    They are if train is accompanied by val or test, or if there are no other names.
    """
    usual = [usual_name(folder) for folder in folders]
    return ("train" in usual and ("val" in usual or "test" in usual)) or (bool(usual) and None not in usual)


def choose_split(asked: str | None, available: Collection[str], *, name: str) -> str:
    """The member of `available` that `asked` means; by default the only one, or the training split."""
    if asked is None and len(available) == 1:
        return next(iter(available))
    wanted = "train" if asked is None else asked
    if wanted in available:
        return wanted
    for alias in _MEANS.get(usual_name(wanted) or "", (wanted.lower(),)):
        for candidate in available:
            if candidate.lower() == alias:
                return candidate
    raise NoSplit(f"{name} has no split {wanted!r}: choose one of {', '.join(map(repr, sorted(available)))}")


class NoSplit(ValueError):  # noqa: N818
    """A source has no such split."""


class NoSplits(NoSplit):
    """A split was requested of a source without splits."""


def no_splits(asked: str | None, *, name: str) -> None:
    if asked is not None:
        raise NoSplits(f"{name} has no splits such as train and val, so split={asked!r} cannot be chosen")
