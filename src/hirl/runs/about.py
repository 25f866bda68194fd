"""about.json of a run: per start its command, versions, machine, resolved settings and the origin of its weights."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hirl.encoders.weights_source import Provenance
from hirl.files import read_json, write_json

LIBRARIES = ("hirl", "torch", "torchvision", "timm", "lightning-fabric", "numpy")


@dataclass(frozen=True)
class About:
    """The file, with one entry per start, oldest first. A damaged file has none."""

    file: Path

    def entries(self) -> list[dict[str, Any]]:
        try:
            entries = read_json(self.file)
        except (OSError, ValueError):
            return []
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    def add_start(self) -> None:
        start: dict[str, Any] = {"command": sys.argv, "python": platform.python_version()}
        start |= {"versions": versions(), "machine": platform.platform()}
        self._write([*self.entries(), start])

    def extend_start(self, more: dict[str, Any]) -> None:
        *earlier, start = self.entries() or [{}]
        self._write([*earlier, start | more])

    @property
    def origin(self) -> Provenance | None:
        """The initial weights of the last start that names them."""
        found = (Provenance.read(entry.get("started_from")) for entry in reversed(self.entries()))
        return next((origin for origin in found if origin is not None), None)

    @property
    def resolved(self) -> dict[str, Any]:
        """Derived settings of the last launch."""
        found = [entry["resolved"] for entry in self.entries() if isinstance(entry.get("resolved"), dict)]
        return found[-1] if found else {}

    def _write(self, entries: list[dict[str, Any]]) -> None:
        write_json(self.file, entries, indent=1)


def versions(*more: str) -> dict[str, str]:
    """The installed versions of hirl and the libraries that its output depends on."""
    return {name: version(name) for name in (*LIBRARIES, *more)}
