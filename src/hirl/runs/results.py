"""Results on disk: figures with the protocol that gave them, found again by exactly that protocol.

A protocol is plain data that names everything the figures depend on: task, arguments, seed, the encoder's hash, the
preprocessing and the identity of the images. Each protocol has its own file, `TASK-<hash>.json`, so that several
protocols of one task stand side by side.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hirl.files import read_json, write_json
from hirl.runs.about import versions

FORMAT = "hirl result 2"
HASH_DIGITS = 12
LONGEST_SETTING = 40  # characters of a setting that are shown


def result_file(folder: Path, protocol: dict[str, Any]) -> Path:
    """Where the result of a protocol is, or would be."""
    text = json.dumps(_plain(protocol), sort_keys=True)
    return folder / f"{protocol['task']}-{hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]}.json"


def write_result(folder: Path, protocol: dict[str, Any], result: dict[str, Any]) -> Path:
    """Write the result of a protocol, with versions and time, and return its file.

    result: `headline` (figures by name), `kinds` (the kind of each), and anything else
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = {"format": FORMAT, "protocol": protocol, **result}
    written["versions"] = versions("scikit-learn", "scipy")
    written["time"] = datetime.now().astimezone().isoformat(timespec="seconds")
    file = result_file(folder, protocol)
    write_json(file, written, indent=1, ensure_ascii=False, default=str)
    return file


def find_result(folder: Path, protocol: dict[str, Any]) -> dict[str, Any] | None:
    """What `write_result` wrote for exactly this protocol; None if there is nothing, or the file is damaged."""
    file = result_file(folder, protocol)
    found = read_result(file)
    if found is None and file.is_file():
        warnings.warn(f"{str(file)!r} is damaged or of another version; the result is computed again", stacklevel=2)
    return found if found is not None and found["protocol"] == _plain(protocol) else None


def list_results(folder: Path) -> dict[Path, dict[str, Any]]:
    """All results below a folder by file, oldest first: `protocol`, `headline`, `kinds` …"""
    files = sorted(folder.rglob("*.json"), key=lambda file: (file.stat().st_mtime, file))
    return {file: result for file in files if (result := read_result(file)) is not None}


def tested_on(result: dict[str, Any]) -> str:
    """The name of the images that a result was measured on; empty if it has none."""
    return str(((result["protocol"].get("data") or {}).get("test") or {}).get("name", ""))


def distinguishing_settings(results: Mapping[Path, dict[str, Any]]) -> dict[Path, str]:
    """Per file, the settings that distinguish it from other results of the same task and images: `ks 1`.

    Empty for a result that is the only one.
    """
    groups: dict[tuple[str, str], dict[Path, dict[str, str]]] = {}
    for file, result in results.items():
        alike = groups.setdefault((str(result["protocol"].get("task")), tested_on(result)), {})
        alike[file] = dict(_settings(result["protocol"]))
    found: dict[Path, str] = {}
    for alike in groups.values():
        names = dict.fromkeys(name for settings in alike.values() for name in settings)
        differing = [name for name in names if len({settings.get(name) for settings in alike.values()}) > 1]
        for file, settings in alike.items():
            found[file] = ", ".join(f"{name} {_cut(settings[name])}" for name in differing if name in settings)
    return found


def _settings(protocol: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """The entries of a protocol as text by dotted name; arguments by their own name."""
    for name, value in protocol.items():
        full = f"{group}.{name}" if group not in ("", "arguments") else name
        if isinstance(value, Mapping):
            yield from _settings(value, full)
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield full, text


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SETTING else f"{text[:LONGEST_SETTING]}…"


def read_result(file: Path) -> dict[str, Any] | None:
    """The result in a file; None if it holds none, or is damaged."""
    try:
        content = read_json(file)
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None
    parts = [content.get(name) for name in ("protocol", "headline", "kinds")]
    return content if all(isinstance(part, dict) for part in parts) else None


def _plain(protocol: dict[str, Any]) -> dict[str, Any]:
    """The protocol as JSON gives it back: lists for tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(protocol, default=str))
    return plain
