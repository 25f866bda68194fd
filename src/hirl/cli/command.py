"""The type of a command, and the check of --out that several commands share."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hirl.config.parser import Parser
from hirl.files import check_writable


@dataclass(frozen=True)
class Command:
    """One command of `hirl`. `options` and `run` are called for this command only, so imports belong into them."""

    name: str
    about: str
    options: Callable[[Parser], None]
    run: Callable[[Namespace], None]
    examples: Mapping[str, str]  # lines that run it, each with what the user gets: `hirl --help` prints them
    guide: str  # the page in docs/ that explains it, with an anchor if need be


def check_new(out: Path, *, overwrite: bool) -> None:
    """Raise a ValueError if a file cannot be written to `out`, or would replace one without --overwrite."""
    check_writable(out)
    check_absent(out, overwrite=overwrite)


def check_absent(out: Path, *, overwrite: bool, option: str = "--out") -> None:
    """Raise a ValueError if the file or folder `out`, which `option` names, would be replaced without --overwrite."""
    if out.exists() and not overwrite:
        raise ValueError(f"{str(out)!r} exists already: name another {option}, or add --overwrite")
