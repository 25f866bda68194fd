"""Time and memory of a piece of work, as the benchmarks measure them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

THREADS = 2


def seconds(work: Callable[[], Any], *, repeats: int) -> float:
    """Return the minimum of several repeats after a warm-up: the time the work takes when nothing disturbs it.

    Short work is repeated for a second, since a few repeats may all be disturbed.
    """
    torch.set_num_threads(THREADS)
    work()
    taken: list[float] = []
    while len(taken) < repeats or sum(taken) < 1:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def peak_mebibytes(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> float:
    """Return by how much one run of `prepare(*arguments)()` raises the peak memory of a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_rise, (prepare, arguments))


def _rise(prepare: Callable[..., Callable[[], Any]], arguments: tuple[Any, ...]) -> float:
    torch.set_num_threads(THREADS)
    work = prepare(*arguments)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
