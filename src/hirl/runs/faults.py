"""Damaged and missing files of a run, found without reading any tensor."""

from __future__ import annotations

from pathlib import Path
from zipfile import is_zipfile

from hirl.runs.folder import RunFolder
from hirl.runs.metrics import read_reports
from hirl.runs.results import read_result


def find_faults(run: RunFolder) -> list[str]:
    """A phrase per damaged or missing file, such as `last.ckpt is damaged`; the most serious first."""
    try:
        config = run.config
    except ValueError:
        return [f"config.yaml is {'damaged' if run.exists else 'missing'}"]
    files = {"last.ckpt": is_zipfile, "encoder.safetensors": _is_safetensors, "tree.safetensors": _is_safetensors}
    files["start.safetensors"] = _is_safetensors
    found = {name: run.folder / name for name in files}
    faults = [f"{name} is damaged" for name, file in found.items() if file.is_file() and not files[name](file)]
    expected = {"last.ckpt": run.saved, "encoder.safetensors": run.finished}
    expected |= {"tree.safetensors": run.finished and config["hierarchy"] is not None}
    expected["start.safetensors"] = run.saved and run.is_adapted
    faults += [f"{name} is missing" for name, needed in expected.items() if needed and not found[name].is_file()]
    damaged_lines = read_reports(run.metrics_file)[1]
    lines = "1 line of metrics.jsonl is" if damaged_lines == 1 else f"{damaged_lines} lines of metrics.jsonl are"
    faults += [f"{lines} damaged"] if damaged_lines else []
    compared = run.adaptation_file.is_file() or not (run.is_adapted or config["unfreeze"])  # what comes before the end
    has_ended = found["encoder.safetensors"].is_file() and compared
    if (has_ended and not run.finished) or (found["last.ckpt"].is_file() and not run.saved):
        faults.append("metrics.jsonl lacks its last reports")
    lost = {run.about_file: run.saved and not run.launches()}
    lost[run.adaptation_file] = run.finished and run.is_adapted and run.adaptation is None
    faults += [
        f"{file.name} is {'damaged' if file.is_file() else 'missing'}" for file, is_lost in lost.items() if is_lost
    ]
    results = [file for file in sorted(run.results_folder.glob("*.json")) if read_result(file) is None]
    return faults + [f"{file.relative_to(run.folder)} is damaged or of another version" for file in results]


def _is_safetensors(file: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False
