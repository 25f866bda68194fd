"""Names of the parts of a data set (train, val, test), and choosing one of them."""

from __future__ import annotations

import re
from collections.abc import Collection

_ALIASES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
# Many sets hold out one part only and call it test: there, it is what "val" means.
_MEANS = {**_ALIASES, "val": _ALIASES["val"] + _ALIASES["test"]}


def usual_name(text: str) -> str | None:
    """train, val or test when `text` is a way to write it, else None."""
    return next((name for name, aliases in _ALIASES.items() if text.lower() in aliases), None)


def leading_split(file_name: str) -> str | None:
    """The split a file name starts with: `val-00003.tar` -> val."""
    word = re.match(r"[A-Za-z]+", file_name)
    return usual_name(word[0]) if word else None


def are_splits(folders: Collection[str]) -> bool:
    """Whether folder names are parts of a set rather than classes, one of which may be a train.

    They are when train stands beside val or test, or when there is nothing else.
    """
    usual = [usual_name(folder) for folder in folders]
    return ("train" in usual and ("val" in usual or "test" in usual)) or (bool(usual) and None not in usual)


def choose_split(asked: str | None, available: Collection[str], *, name: str) -> str:
    """The member of `available` that was meant; without a wish the only one, or the training part."""
    if asked is None and len(available) == 1:
        return next(iter(available))
    wish = "train" if asked is None else asked
    if wish in available:
        return wish
    for alias in _MEANS.get(usual_name(wish) or "", (wish.lower(),)):
        for candidate in available:
            if candidate.lower() == alias:
                return candidate
    raise ValueError(f"{name} has no split {wish!r}; choose one of {', '.join(map(repr, sorted(available)))}.")


class NoParts(ValueError):  # noqa: N818
    """A part was asked of images that have none."""


def no_splits(asked: str | None, *, name: str) -> None:
    if asked is not None:
        raise NoParts(f"{name} has no parts such as train and val, so split={asked!r} cannot be chosen.")
