"""What a command is, and what several of them check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from hirl.files import check_writable


@dataclass(frozen=True)
class Command:
    """One word after `hirl`. `options` is called when the word is said, so that others need not import what they do."""

    name: str
    about: str
    options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], None]
    prepared: Callable[[Sequence[str]], list[str]] = list


def check_new(out: Path, *, overwrite: bool) -> None:
    """A ValueError if nothing can be written at `out`, or something would be lost by it."""
    check_writable(out)
    if out.exists() and not overwrite:
        raise ValueError(f"{str(out)!r} exists already: name another --out, or say --overwrite")
