"""Tables of text cells: printed on the terminal, and written as Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.files import atomic_write

Cells = list[list[str]]  # rows, the heading first


def per_cent(value: float, *, digits: int = 2, sign: bool = False, unit: bool = True) -> str:
    """A fraction in per cent: 0.256 → 25.60%."""
    return f"{100 * value:{'+' if sign else ''}.{digits}f}{'%' if unit else ''}"


def write_tables(folder: Path, tables: Mapping[str, Cells]) -> None:
    """Write all tables to tables.md, and each to a CSV file of its own."""
    with atomic_write(folder / "tables.md") as aside:
        aside.write_text("\n".join(f"## {name}\n\n{markdown(cells)}" for name, cells in tables.items()), "utf-8")
    for name, cells in tables.items():
        with (
            atomic_write(folder / f"{name.replace(' ', '_')}.csv") as aside,
            aside.open("w", encoding="utf-8", newline="") as file,
        ):
            csv.writer(file).writerows(cells)


def markdown(cells: Cells) -> str:
    """Format a table as Markdown."""
    heading, *rows = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def print_tables(tables: Mapping[str, Cells]) -> None:
    """Print each table under its name."""
    console = Console()
    for name, (heading, *rows) in tables.items():
        table = Table(*map(escape, heading), title=escape(name), title_justify="left")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
