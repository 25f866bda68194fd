"""What the terminal shows: a hierarchy while it is made and once it is, and what a set of images holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
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
    from hirl.data import ImageSet
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


def image_table(images: ImageSet) -> None:
    """Prints a row a label level, finest first: classes, images a class, and the first of their names."""
    title = f"{images.name}: {len(images):,} images"
    if images.pixels is not None:
        height, width = images.pixels.shape[-2:]
        title += f" of {width} × {height} pixels"
    if images.labels is None:
        Console().print(f"{title}, unlabelled", markup=False, highlight=False)
        return
    table = Table(title=escape(title), title_justify="left")
    for heading in ("level", "classes", "fewest", "median", "most", "named"):
        table.add_column(heading, justify="left" if heading == "named" else "right")
    for level, names in enumerate(images.label_names):
        counts = images.labels[:, level].bincount(minlength=len(names))
        figures = [len(names), int(counts.min()), int(counts.median()), int(counts.max())]
        few = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        table.add_row(str(level), *(f"{figure:,}" for figure in figures), escape(few))
    Console().print(table)
