"""Progress of long tasks: bars with rate and remaining time on a terminal, a line per task elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (task, done, total)."""


def no_progress(_task: str, _done: int, _total: int) -> None:
    """Shows nothing."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A bar for each thing that is done, with its rate and the time remaining; off a terminal a line at its end."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    began: dict[str, float] = {}
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks or done < bars.tasks[tasks[what]].completed:  # the same thing may be done again
                tasks[what] = bars.add_task(escape(what), total=total, rate="")
                began[what] = time.monotonic()
            bars.update(tasks[what], completed=done, total=total)
            speed = bars.tasks[tasks[what]].speed
            bars.update(tasks[what], rate=f"{speed:,.0f} a second" if speed else "")
            if done == total and not console.is_terminal:
                seconds = time.monotonic() - began[what]
                console.print(f"{what}: {total:,} in {seconds:.0f} s", markup=False, highlight=False, soft_wrap=True)

        yield progress


@contextmanager
def tree_progress(N: int, levels: Sequence[int], steps: int | None) -> Iterator[Callable[[int, int, int], None]]:
    """Show one bar per level: rows done of at most `steps` steps (None if unknown), rate and time remaining."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows, {task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    rows = [N, *levels]
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[int, TaskID] = {}

        def progress(level: int, step: int, done: int) -> None:
            if level not in tasks:
                for earlier in tasks.values():  # a level may end before its last iteration
                    bars.update(earlier, total=bars.tasks[earlier].completed)
                total = None if steps is None else steps * rows[level]
                tasks[level] = bars.add_task(f"level {level}: {levels[level]:,} nodes", total=total, rate="")
            bars.update(tasks[level], completed=step * rows[level] + done)
            speed = bars.tasks[tasks[level]].speed
            bars.update(tasks[level], rate=f"{speed:,.0f} a second" if speed else "")

        yield progress
        for task in tasks.values():
            bars.update(task, total=bars.tasks[task].completed)
