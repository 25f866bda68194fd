"""Progress of long tasks: bars with rate and remaining time on a terminal, a line per task elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (task, done, total)."""


def no_progress(_task: str, _done: int, _total: int) -> None:
    """Show nothing."""


def on_terminal() -> bool:
    """Whether bars are shown."""
    return Console(stderr=True).is_terminal


def duration_text(seconds: float) -> str:
    """A duration in its natural unit: `about 40 s`, `about 12 min`, `about 3.5 h`."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show a bar per task with its rate and the time remaining; off a terminal, print a line when a task is done."""
    console = Console(stderr=True)
    started: dict[str, float] = {}
    columns = _columns(BarColumn(bar_width=20), "{task.fields[rate]}")
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        bar_of: dict[str, TaskID] = {}

        def progress(task: str, done: int, total: int) -> None:
            if task not in bar_of or done < bars.tasks[bar_of[task]].completed:  # a task may be done again
                bar_of[task] = bars.add_task(escape(task), total=total, rate="")
                started[task] = time.monotonic()
            _update(bars, bar_of[task], done, total)
            if done == total and not console.is_terminal:
                seconds = time.monotonic() - started[task]
                console.print(f"{task}: {total:,} in {seconds:.0f} s", markup=False, highlight=False, soft_wrap=True)

        yield progress


@contextmanager
def tree_progress(
    rows: Sequence[int], levels: Sequence[int], steps: int | None
) -> Iterator[Callable[[int, int, int], None]]:
    """Show one bar per level: rows × iterations, of at most `steps` iterations (None: unknown), rate, time left."""
    with Bars(*_columns(BarColumn(), "rows × iterations, {task.fields[rate]}"), console=Console(stderr=True)) as bars:
        tasks: dict[int, TaskID] = {}

        def progress(level: int, step: int, done: int) -> None:
            if level not in tasks:
                _complete(bars, tasks)  # a level may end before its last step
                total = None if steps is None else steps * rows[level]
                tasks[level] = bars.add_task(f"level {level}: {levels[level]:,} nodes", total=total, rate="")
            _update(bars, tasks[level], step * rows[level] + done, bars.tasks[tasks[level]].total)

        yield progress
        _complete(bars, tasks)


def _columns(bar: BarColumn, rate: str) -> tuple[ProgressColumn, ...]:
    counts = (MofNCompleteColumn(), TextColumn(rate), TimeElapsedColumn(), TimeRemainingColumn())
    return (TextColumn("{task.description}"), bar, *counts)


def _update(bars: Bars, task: TaskID, done: int, total: float | None) -> None:
    bars.update(task, completed=done, total=total)
    speed = bars.tasks[task].speed
    bars.update(task, rate=f"{speed:,.0f} per second" if speed else "")


def _complete(bars: Bars, tasks: Mapping[int, TaskID]) -> None:
    for task in tasks.values():
        bars.update(task, total=bars.tasks[task].completed)
