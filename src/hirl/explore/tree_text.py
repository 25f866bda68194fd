"""A tree of prototypes as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from hirl.hierarchy.tree import PrototypeTree


def level_table(tree: PrototypeTree, **columns: Sequence[str]) -> None:
    """Print one row per level, fine to coarse: nodes, images per node, children per node, and further columns."""
    table = Table(title=f"{tree.count:,} images, {len(tree.levels)} levels", title_justify="left")
    table.add_column("level", justify="right")
    for heading in ("nodes", "fewest images", "median", "most", "children per node", *columns):
        table.add_column(heading.replace("_", " "), justify="right")
    for level, nodes in enumerate(tree.levels):
        sizes = tree.sizes(level)
        below = tree.levels[level - 1] if level else tree.count
        row = [str(level), f"{nodes:,}", f"{int(sizes.min()):,}", f"{int(sizes.median()):,}", f"{int(sizes.max()):,}"]
        table.add_row(*row, f"{below / nodes:.1f}", *(values[level] for values in columns.values()))
    Console().print(table)
