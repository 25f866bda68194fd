"""Damaged and missing files of a run, found without reading any tensor."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from hirl.runs.folder import Run


def find_faults(run: Run) -> list[str]:
    """A phrase per damaged or missing file, such as `last.ckpt is damaged`; the most serious first."""
    try:
        config = run.config
    except ValueError:
        return [f"config.yaml is {'damaged' if run.exists else 'missing'}"]
    files = {"last.ckpt": _is_checkpoint, "encoder.safetensors": _is_safetensors, "tree.safetensors": _is_safetensors}
    found = {name: run.folder / name for name in files}
    faults = [f"{name} is damaged" for name, file in found.items() if file.is_file() and not files[name](file)]
    expected = {"last.ckpt": run.saved, "encoder.safetensors": run.finished}
    expected |= {"tree.safetensors": run.finished and config["hierarchy"] is not None}
    faults += [f"{name} is missing" for name, needed in expected.items() if needed and not found[name].is_file()]
    about = [] if run.starts() or not run.about_file.is_file() else [run.about_file]
    results = sorted(run.results_folder.glob("*.json"))
    return faults + [f"{file.relative_to(run.folder)} is damaged" for file in [*about, *filter(_is_no_json, results)]]


def _is_checkpoint(file: Path) -> bool:
    return zipfile.is_zipfile(file)


def _is_safetensors(file: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


def _is_no_json(file: Path) -> bool:
    try:
        return not isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return True
