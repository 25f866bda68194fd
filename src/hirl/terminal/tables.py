"""Tables of text cells: printed on the terminal, and written as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.files import atomic_write

Cells = list[list[str]]  # rows, the heading first
Rows = list[list[Any]]  # the same with numbers


UNLIMITED = 10_000  # columns


def write_tables(folder: Path, tables: Mapping[str, Cells], numbers: Mapping[str, Rows] | None = None) -> None:
    """Write all tables to tables.md and tables.tex, and each to a CSV file: its `numbers`, or else its cells."""
    for name, format_table in (("tables.md", markdown), ("tables.tex", latex)):
        with atomic_write(folder / name) as aside:
            aside.write_text("\n".join(format_table(title, cells) for title, cells in tables.items()), "utf-8")
    for title, cells in tables.items():
        with (
            atomic_write(folder / f"{title.replace(' ', '_')}.csv") as aside,
            aside.open("w", encoding="utf-8", newline="") as file,
        ):
            csv.writer(file).writerows((numbers or {}).get(title, cells))


def markdown(title: str, cells: Cells) -> str:
    heading, *rows = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    lines = [heading, ["---"] * len(heading), *rows]
    return f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "–": "--", "<": "$<$", ">": "$>$"}
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def latex(title: str, cells: Cells) -> str:
    """Format a table as LaTeX, for the package booktabs."""
    heading, *rows = [["".join(LATEX.get(character, character) for character in cell) for cell in row] for row in cells]
    body = [r"\toprule", " & ".join(heading) + r" \\", r"\midrule", *(" & ".join(row) + r" \\" for row in rows)]
    columns = "l" * len(heading)
    return "\n".join([f"% {title}", rf"\begin{{tabular}}{{{columns}}}", *body, r"\bottomrule", r"\end{tabular}", ""])


def print_tables(tables: Mapping[str, Cells]) -> None:
    """Print each table under its name."""
    for name, (heading, *rows) in tables.items():
        table = Table(*map(escape, heading), title=escape(name), title_justify="left")
        for row in rows:
            table.add_row(*map(escape, row))
        print_table(table, heading, rows)


def print_table(table: Table, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table if it fits the terminal; else a list with a line per cell, so that no cell loses its end.

    Output that goes to a file or another program is as wide as the table, unless COLUMNS limits it.
    """
    console = Console()
    if table.title:  # above it, or a narrow table would wrap it
        console.print(table.title, style="table.title", highlight=False, soft_wrap=True)
        table = copy(table)
        table.title = None
    needed = console.measure(table, options=console.options.update(max_width=UNLIMITED)).maximum
    if not console.is_terminal and "COLUMNS" not in os.environ:
        Console(width=max(needed, console.width)).print(table)
        return
    if needed <= console.width:
        console.print(table)
        return
    for row in rows:
        named = [(name, cell) for name, cell in zip(heading, row, strict=True) if cell]
        for place, (name, cell) in enumerate(named):
            console.print(escape(f"{'  ' if place else '- '}{name}: {cell}"), highlight=False, soft_wrap=True)
