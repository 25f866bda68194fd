"""Results of an evaluation as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.evals.base import Result, Row

SHARES = ("accuracy", "purity", "precision", "chance", "classes", "%")  # figures that people read in per cent


def result_tables(task: str, subject: str, result: Result) -> None:
    """Prints a task's figures; rows of other columns start a table of their own."""
    console = Console()
    console.print(escape(f"{task}: {subject}"), highlight=False, soft_wrap=True)
    for columns, rows in groupby(result.rows, key=_columns):
        console.print(_table(columns, list(rows)))
    figures = ", ".join(f"{name} {shown(name, value)}" for name, value in result.headline.items())
    console.print(escape(f"{task}: {figures}"), highlight=False, soft_wrap=True)
    for line in settled(result):
        console.print(escape(f"{task} settled on{line}"), highlight=False, soft_wrap=True)


def settled(result: Result) -> list[str]:
    """What a protocol settled on, a line for each group of settings; of a nested group only what no column shows."""
    columns = {column for row in result.rows for column in row}
    lines = []
    for group, settings in _groups(result.chosen):
        words = ", ".join(
            f"{name} {_setting(value)}" for name, value in settings.items() if not (group and name in columns)
        )
        if words:
            lines.append(f"{', ' if group else ''}{group}: {words}")
    return lines


def _groups(chosen: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings that stand side by side, with the names they are nested under: `rates at 50 classes`."""
    yield group, {name: value for name, value in chosen.items() if not isinstance(value, Mapping)}
    for name, value in chosen.items():
        if isinstance(value, Mapping):
            yield from _groups(value, f"{group} at {name}" if group else name)


def _setting(value: Any) -> str:
    """A setting as it would be typed."""
    if isinstance(value, list | tuple):
        return " ".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _columns(row: Row) -> tuple[str, ...]:
    return tuple(row)


def _table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        numbers = all(isinstance(row[column], int | float) for row in rows)
        table.add_column(escape(column), justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(shown(column, row[column])) for column in columns))
    return table


def shown(name: str, value: Any) -> str:
    """A figure as people read it: shares in per cent, other fractions with three digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "✓" if value else ""
    if isinstance(value, float):
        figure = name.partition(",")[0]
        if any(word in figure for word in SHARES):
            return f"{value:.2%}"
        return f"{value:.3f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
