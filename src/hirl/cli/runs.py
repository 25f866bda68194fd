"""`hirl runs`: a list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.cli.command import Command
from hirl.runs.faults import find_faults
from hirl.runs.folder import Run
from hirl.runs.state import run_state

MARKS = ("config.yaml", "metrics.jsonl", "last.ckpt")  # a folder with any of them is a run, though it may be broken
# The finest level: on the val split, on a fifth of the training images, and the latter in runs of earlier versions.
KNN = ("knn_val_level_0", "knn_train_level_0", "knn_level_0")


def runs_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="A folder of runs; by default runs.")


def runs(config: Namespace) -> None:
    list_runs(config.folder)


def list_runs(folder: Path) -> None:
    """Print a line per run below a folder."""
    found = sorted({file.parent for name in MARKS for file in folder.glob(f"**/{name}")})
    if not found:
        raise ValueError(f"there is no run below {str(folder)!r}")
    table = Table(title=f"runs in {escape(str(folder))}", title_justify="left")
    for heading in ("run", "state", "loss_image", "loss_spd", "knn"):
        # Long names go on in the next line: runs often differ at the end of their names.
        table.add_column(heading, justify="left" if heading in ("run", "state") else "right", overflow="fold")
    for place in found:
        run = Run(place)
        lines = list(run.metrics())
        last = [_last(lines, name) for name in ("loss_image", "loss_spd")]
        knn = next((value for name in KNN if (value := _last(lines, name)) is not None), None)
        cells = [(f"{value:.4f}" if value else "") for value in last] + ["" if knn is None else f"{knn:.1%}"]
        table.add_row(escape(str(place.relative_to(folder))), _state(run, lines), *cells)
    Console().print(table)


def _state(run: Run, lines: Sequence[dict[str, Any]]) -> str:
    faults = find_faults(run)
    broken = f"broken: {', '.join(faults)}" if faults else ""
    try:
        return "; ".join(filter(None, (run_state(run, lines), broken)))
    except ValueError:  # no configuration
        return broken


def _last(lines: Sequence[dict[str, Any]], name: str) -> float | None:
    return next((line[name] for line in reversed(lines) if isinstance(line.get(name), float)), None)


RUNS = Command("runs", "list runs", runs_options, runs)
