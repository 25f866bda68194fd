"""Results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.evals.base import Result, Row, Subject
from hirl.terminal.figures import format_cell, format_figure
from hirl.terminal.tables import print_table


def print_result(task: str, subject: Subject, result: Result, *, sized: bool = True) -> None:
    """Print a task's figures: a table per run of rows with the same columns, the headline, and what was chosen.

    sized: whether all images were brought to the subject's size
    """
    size = subject.image_size
    print_message(f"{task}: {subject.name} on {subject.test.name}" + (f", {size} × {size} pixels" if sized else ""))
    for columns, rows in groupby(result.rows, key=tuple):
        _print_table(columns, list(rows))
    print_headline(task, result)
    for line in chosen_settings(result):
        print_message(f"{task} chose{line}")


def print_headline(task: str, result: Result, *, note: str = "") -> None:
    figures = "; ".join(f"{name} {format_figure(value)}" for name, value in result.headline.items())
    print_message(f"{task}: {figures}" + (f" ({note})" if note else ""))


def chosen_settings(result: Result) -> list[str]:
    """Settings the evaluation chose, one line per group; nested groups omit settings that are columns."""
    columns = {column for row in result.rows for column in row}
    lines = []
    for group, settings in _groups(result.chosen):
        named = ", ".join(
            f"{name} {_setting(value)}" for name, value in settings.items() if not (group and name in columns)
        )
        if named:
            lines.append(f"{', ' if group else ''}{group}: {named}")
    return lines


def _groups(chosen: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings by the names they are nested under: `rates at 50 classes`."""
    yield group, {name: value for name, value in chosen.items() if not isinstance(value, Mapping)}
    for name, value in chosen.items():
        if isinstance(value, Mapping):
            yield from _groups(value, f"{group} at {name}" if group else name)


def _setting(value: Any) -> str:
    """A setting as it would be typed."""
    if isinstance(value, list | tuple):
        return " ".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        numbers = all(isinstance(row[column], int | float) for row in rows)
        table.add_column(escape(column), justify="right" if numbers else "left", no_wrap=True)
    cells = [[format_cell(row[column]) for column in columns] for row in rows]
    for row_cells in cells:
        table.add_row(*map(escape, row_cells))
    print_table(table, columns, cells)


def print_message(line: str) -> None:
    """Print text as it is."""
    Console().print(escape(line), highlight=False, soft_wrap=True)
