"""The commands and the Python code in README and docs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:hirl|make|python) [^`]+)`")


class Line(NamedTuple):
    """A command line, and the page it stands on."""

    page: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.parts)}"


def blocks(language: str) -> list[tuple[str, str]]:
    """Every fenced block of a language with its page; "" for blocks without one, which hold commands."""
    return [
        (str(page.relative_to(ROOT)), body)
        for page in PAGES
        for name, body in FENCE.findall(page.read_text(encoding="utf-8"))
        if name == language
    ]


def command_lines() -> list[Line]:
    """Every command in blocks without a language, continuation lines joined and comments left out; each once."""
    found: dict[tuple[str, ...], Line] = {}
    for page, body in blocks(""):
        for text in body.replace("\\\n", " ").splitlines():
            line = tuple(shlex.split(text, comments=True))
            if line:
                found.setdefault(line, Line(page, line))
    return list(found.values())


def inline_commands() -> list[Line]:
    """Commands within sentences, such as `hirl show RUN --page`."""
    found = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for command in INLINE.findall(text):
            found.append(Line(str(page.relative_to(ROOT)), tuple(" ".join(command.split()).split())))
    return found
