"""A run as notebooks show it: how far it is, and its last figures."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hirl.runs.state import run_state

if TYPE_CHECKING:
    from hirl.runs.folder import Run

HIDDEN = ("step", "epoch", "finished", "saved")


def run_text(run: Run) -> str:
    """One line: the folder, the method, the arm and how far it is; also of a folder that is no run."""
    try:
        return f"Run({str(run.folder)!r}: {run_state(run, list(run.metrics()))})"
    except ValueError as error:
        return f"Run({str(run.folder)!r}: {error})"


def run_html(run: Run) -> str:
    """The line of `run_text`, and a table of the last value of every figure."""
    figures = {name: value for line in run.metrics() for name, value in line.items() if name not in HIDDEN}
    rows = [
        f"<tr><td>{escape(name)}</td><td>{escape(f'{value:.4g}' if isinstance(value, float) else str(value))}</td></tr>"
        for name, value in figures.items()
    ]
    return f"<p><b>{escape(run_text(run))}</b></p><table>{''.join(rows)}</table>"
