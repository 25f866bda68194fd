"""How the benchmarks take time and memory."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any

import torch

THREADS = 2


def seconds(work: Callable[[], Any], *, repeats: int) -> float:
    """The least of several repeats after one to warm up: what the work takes when nothing else disturbs it."""
    torch.set_num_threads(THREADS)
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def peak_mebibytes(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> float:
    """How far one run of `prepare(*arguments)()` raises the peak memory of a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_rise, (prepare, arguments))


def _rise(prepare: Callable[..., Callable[[], Any]], arguments: tuple[Any, ...]) -> float:
    torch.set_num_threads(THREADS)
    work = prepare(*arguments)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
