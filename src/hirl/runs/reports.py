"""The lines of metrics.jsonl, each with a checksum of its own, since the file grows line by line."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

_MARK = ', "crc32": "'


def report_line(report: dict[str, Any]) -> str:
    text = json.dumps(report)
    return f'{text[:-1]}{_MARK}{zlib.crc32(text.encode()):08x}"}}\n'


def read_reports(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The reports in a file, oldest first, and the number of damaged lines among them, such as a last one cut off."""
    if not file.is_file():
        return [], 0
    *lines, rest = file.read_text(encoding="utf-8", errors="replace").split("\n")
    found = [*(_read(line) for line in lines if line), *([None] if rest else [])]
    return [report for report in found if report is not None], sum(report is None for report in found)


def _read(line: str) -> dict[str, Any] | None:
    """The report of a line; None if it is damaged."""
    body, _, digits = line.rpartition(_MARK)
    text = f"{body}}}"
    if digits != f'{zlib.crc32(text.encode()):08x}"}}':
        return None
    try:
        report = json.loads(text)
    except ValueError:
        return None
    sound = isinstance(report, dict) and all(isinstance(report.get(key), int | float) for key in ("step", "epoch"))
    return report if sound else None
