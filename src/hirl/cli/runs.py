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
from hirl.cli.run_state import run_state
from hirl.runs.folder import Run


def runs_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="A folder of runs; by default runs.")


def runs(config: Namespace) -> None:
    list_runs(config.folder)


def list_runs(folder: Path) -> None:
    """Print a line per run below a folder."""
    found = sorted({file.parent for file in folder.glob("**/config.yaml")})
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
        knn = _last(lines, "knn_level_0")
        cells = [(f"{value:.4f}" if value else "") for value in last] + ["" if knn is None else f"{knn:.1%}"]
        table.add_row(escape(str(place.relative_to(folder))), run_state(run, lines), *cells)
    Console().print(table)


def _last(lines: Sequence[dict[str, Any]], name: str) -> float | None:
    return next((line[name] for line in reversed(lines) if name in line), None)


RUNS = Command("runs", "list runs", runs_options, runs)
