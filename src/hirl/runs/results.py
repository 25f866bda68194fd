"""Results on disk: figures with the protocol that gave them, found again by exactly that protocol.

A protocol is plain data that names everything the figures depend on: task, arguments, seed, the encoder's hash, the
preprocessing and the identity of the images. Each protocol has its own file, `TASK-<hash>.json`, so that several
protocols of one task stand side by side.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from hirl.files import atomic_write
from hirl.runs.folder import versions

FORMAT = "hirl result 2"
HASH_DIGITS = 12
# Tasks of the first format, TASK.json. All their headline figures are shares but one.
FIRST_TASKS = ("knn", "linear", "clustering", "hierarchy", "semisup", "finetune", "transfer")
FIRST_SCORE = "height correlation"


def result_file(folder: Path, protocol: dict[str, Any]) -> Path:
    """Where the result of a protocol is, or would be."""
    text = json.dumps(_plain(protocol), sort_keys=True)
    return folder / f"{protocol['task']}-{hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]}.json"


def write_result(folder: Path, protocol: dict[str, Any], result: dict[str, Any]) -> Path:
    """Write the result of a protocol, with versions and time, and return its file.

    result: `headline` (figures by name), `kinds` (the kind of each), and anything else worth keeping
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    written = {"format": FORMAT, "protocol": protocol, **result, "versions": _versions(), "time": now}
    file = result_file(folder, protocol)
    with atomic_write(file) as aside:
        aside.write_text(json.dumps(written, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
    return file


def find_result(folder: Path, protocol: dict[str, Any]) -> dict[str, Any] | None:
    """What `write_result` wrote for exactly this protocol; None if there is nothing, or the file is damaged.

    Files of the first format do not identify their images by content, so they never match.
    """
    found = _read(result_file(folder, protocol))
    matches = found is not None and found.get("format") == FORMAT and found.get("protocol") == _plain(protocol)
    return found if matches else None


def list_results(folder: Path) -> dict[Path, dict[str, Any]]:
    """All results below a folder by file, oldest first, of whichever format: `protocol`, `headline`, `kinds` …"""
    files = sorted(folder.rglob("*.json"), key=lambda file: (file.stat().st_mtime, file))
    found = {file: _upgrade(content) for file in files if (content := _read(file)) is not None}
    return {file: result for file, result in found.items() if result is not None}


def _upgrade(content: dict[str, Any]) -> dict[str, Any] | None:
    """A result as written today, from any format; None if the content is not a result."""
    if content.get("format") == FORMAT:
        parts = [content.get(name) for name in ("protocol", "headline", "kinds")]
        return content if all(isinstance(part, dict) for part in parts) else None
    if not ({"task", "data"} <= content.keys() and isinstance(content.get("headline"), dict)):
        return None
    names = ("task", "arguments", "seed", "encoder", "images", "data")
    kinds = {name: "score" if name == FIRST_SCORE else "share" for name in content["headline"]}
    rest = {name: value for name, value in content.items() if name not in names}
    return {
        "format": "hirl result 1",
        "protocol": {name: content.get(name) for name in names},
        "kinds": {"headline": kinds if content["task"] in FIRST_TASKS else {}},
        **rest,
    }


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _plain(protocol: dict[str, Any]) -> dict[str, Any]:
    """The protocol as JSON gives it back: lists for tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(protocol, default=str))
    return plain


def _versions() -> dict[str, str]:
    return versions("scikit-learn", "scipy")
