"""`hirl runs`: list the runs below a folder with their state and last metrics."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.cli.command import Command
from hirl.config.parser import Parser
from hirl.runs.faults import find_faults
from hirl.runs.folder import RunFolder
from hirl.runs.metrics import METRICS, metric_values
from hirl.terminal.figures import Kind, four_digits

MARKS = ("config.yaml", "metrics.jsonl", "last.ckpt")  # a folder with any of these is a run, possibly broken
COLUMNS = tuple(dict.fromkeys(metric.column for metric in METRICS if metric.column is not None))


def options(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="A folder of runs; by default runs.")


def run(config: Namespace) -> None:
    folder = config.folder
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder, but must be a folder of runs")
    found = sorted({file.parent for name in MARKS for file in folder.glob(f"**/{name}")})
    if not found:
        raise ValueError(f"there is no run below {str(folder)!r}")
    table = Table(title=f"runs in {escape(str(folder))}", title_justify="left")
    for heading in ("run", "state", *COLUMNS):
        # Wrap long names instead of cutting them: runs often differ at the end of their names.
        table.add_column(heading, justify="left" if heading in ("run", "state") else "right", overflow="fold")
    for place in found:
        run = RunFolder(place)
        lines = list(run.metrics())
        cells = [_cell(lines, column) for column in COLUMNS]
        table.add_row(escape(str(place.relative_to(folder))), _state(run), *cells)
    Console().print(table)


def _state(run: RunFolder) -> str:
    faults = find_faults(run)
    broken = f"broken: {', '.join(faults)}" if faults else ""
    try:
        return "; ".join(filter(None, (run.state, broken)))
    except ValueError:  # no configuration
        return broken


def _cell(lines: Sequence[dict[str, Any]], column: str) -> str:
    """The last value of the first of this column's metrics that the run has reported."""
    for metric in METRICS:
        if metric.column == column and (values := metric_values(lines, metric)):
            last = values[-1]
            return f"{last:.1%}" if metric.kind is Kind.SHARE and not isnan(last) else four_digits(last)
    return ""


RUNS = Command(
    "runs",
    "list runs",
    options,
    run,
    examples={"hirl runs": "the runs in the folder runs/, with their state"},
    guide="training.md#the-run-folder",
)
