"""The methods at a size for tests, and the steps of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from hirl.methods.base import Plan

from ..small_methods import small_arguments
from . import rank_of_a_run

PLAN = Plan(epochs=16, steps_per_epoch=4, batch_size=16, image_size=32)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small only wait for a second thread, long when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def two_ranks(as_rank: Callable[..., None]) -> None:
    """Two threads stand for two processes: each hands in its tensor, waits, and takes the mean."""
    barrier = threading.Barrier(2, timeout=30)
    handed: dict[int, torch.Tensor] = {}

    def mean(mine: torch.Tensor) -> torch.Tensor:
        handed[threading.get_ident()] = mine
        barrier.wait()
        average = torch.stack(list(handed.values())).mean(0)
        if barrier.wait() == 0:
            handed.clear()
        barrier.wait()
        return average

    as_rank(of=2, mean=mean)


@pytest.fixture(scope="session")
def plan() -> Plan:
    return PLAN


class SmallArguments(dict[str, dict[str, Any]]):
    """Constructor arguments by class name, read on first access: a method without a recipe fails its own tests only."""

    def __missing__(self, name: str) -> dict[str, Any]:
        self[name] = small_arguments(name)
        return self[name]


@pytest.fixture(scope="session")
def small() -> dict[str, dict[str, Any]]:
    return SmallArguments()


@pytest.fixture(scope="session")
def run() -> ModuleType:
    return rank_of_a_run
