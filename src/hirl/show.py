"""What the terminal shows of a hierarchy: progress while it is made, tables and trees once it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from hirl.hierarchy.kmeans import Progress as KmeansProgress
    from hirl.hierarchy.tree import PrototypeTree


@contextmanager
def kmeans_progress(N: int, levels: Sequence[int], steps: int) -> Iterator[KmeansProgress]:
    """A bar a level, in rows looked at over at most `steps` steps, with the rate and the time remaining."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows, {task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    rows = [N, *levels]
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[int, TaskID] = {}

        def progress(level: int, step: int, done: int) -> None:
            if level not in tasks:
                for earlier in tasks.values():  # a level may end before its last iteration
                    bars.update(earlier, total=bars.tasks[earlier].completed)
                words = f"level {level}: {levels[level]:,} nodes"
                tasks[level] = bars.add_task(words, total=steps * rows[level], rate="")
            bars.update(tasks[level], completed=step * rows[level] + done)
            speed = bars.tasks[tasks[level]].speed
            bars.update(tasks[level], rate=f"{speed:,.0f} a second" if speed else "")

        yield progress
        for task in tasks.values():
            bars.update(task, total=bars.tasks[task].completed)


def level_table(tree: PrototypeTree, **columns: Sequence[str]) -> None:
    """Prints a row a level, fine to coarse: nodes, images a node, and further columns of the caller's."""
    table = Table(title=f"{len(tree.leaves):,} images, {len(tree.levels)} levels", title_justify="left")
    table.add_column("level", justify="right")
    for heading in ("nodes", "fewest images", "median", "most", "children a node", *columns):
        table.add_column(heading.replace("_", " "), justify="right")
    for level, nodes in enumerate(tree.levels):
        sizes = tree.sizes(level)
        below = tree.levels[level - 1] if level else len(tree.leaves)
        row = [str(level), f"{nodes:,}", f"{int(sizes.min()):,}", f"{int(sizes.median()):,}", f"{int(sizes.max()):,}"]
        table.add_row(*row, f"{below / nodes:.1f}", *(values[level] for values in columns.values()))
    Console().print(table)
