"""How far a run is, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hirl.runs.folder import Run


def run_state(run: Run, lines: Sequence[dict[str, Any]]) -> str:
    """Method, arm, state and epoch of a run whose reports are `lines`."""
    config = run.config
    arm = "baseline" if config.get("hierarchy") is None else "HIRL"
    method = config["method"]["class_path"].rsplit(".", 1)[-1]
    epoch = max((line["epoch"] for line in lines), default=0)
    state = "finished" if run.finished else "unfinished"
    return f"{method}, {arm}, {state}, epoch {epoch:.4g} of {config['epochs']}"
