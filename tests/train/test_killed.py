"""A run that is killed anywhere and continued by the same call ends in the same bits as an undisturbed one."""

from __future__ import annotations

import math
import random
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hirl.run import Run

from ..jobs import Jobs
from ..small_methods import NAMES
from .killed_run import FIRST_SCALE

HALF = " in half precision"
EPOCHS, STEPS = 4, 4 * (100 // 16)


class Runs:
    """Starts runs through killed_run.py, each in a process of its own; returns exit code and output."""

    def __init__(self) -> None:
        self.jobs = Jobs("train.killed_run")

    def __call__(self, method: str, folder: Path, where: str = "never", at: int = 0) -> tuple[int, str]:
        """`method`: its class; in 16-mixed with HALF after it."""
        name, half = method.removesuffix(HALF), method.endswith(HALF)
        return self.jobs(method=name, folder=str(folder), where=where, at=at, half=half)


@pytest.fixture(scope="module")
def run() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    runs.jobs.close()


def same(one: Any, other: Any, where: str = "") -> None:
    """Assert equality to the bit, at any depth."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same(mine, theirs, f"{where}[{place}]")
    else:
        assert one == other, where


class Untouched(dict[str, Path]):
    """The folder of an undisturbed run per method, trained on first access."""

    def __init__(self, run: Runs, folder: Path) -> None:
        super().__init__()
        self.run, self.folder = run, folder

    def __missing__(self, method: str) -> Path:
        code, output = self.run(method, self.folder / method)
        assert code == 0, output
        self[method] = self.folder / method
        return self[method]


@pytest.fixture(scope="module")
def untouched(run: Runs, tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    return Untouched(run, tmp_path_factory.mktemp("untouched"))


def epoch_figures(folder: Path) -> list[dict[str, Any]]:
    """What a run has reported of its epochs, but for their time."""
    return [
        {name: value for name, value in line.items() if name != "seconds_epoch"}
        for line in Run(folder).metrics()
        if "loss_image" in line
    ]


def killed_and_continued(run: Runs, method: str, folder: Path, where: str, at: int, untouched: Path) -> dict[str, Any]:
    """Return the checkpoint that the killed process left, if any."""
    code, output = run(method, folder, where, at)
    assert code == -signal.SIGKILL, output
    last = folder / "last.ckpt"
    left: dict[str, Any] = torch.load(last, weights_only=True) if last.exists() else {}
    code, output = run(method, folder)
    assert code == 0, output
    ends = [torch.load(place / "last.ckpt", weights_only=True) for place in (untouched, folder)]
    assert ends[0]["step"] == STEPS
    same(ends[0], ends[1])
    for file in ("encoder.safetensors", "tree.safetensors"):
        assert (folder / file).read_bytes() == (untouched / file).read_bytes()
    reports = [epoch_figures(place) for place in (untouched, folder)]
    assert len(reports[0]) == EPOCHS
    assert reports[0] == reports[1]
    assert not list(folder.glob(".*.part")), "a half-written file of a killed process is still there"
    return left


PLACES = [("step", 9), ("checkpoint", 2), ("checkpoint", 3), ("step", 13), ("refresh", 3), ("refresh", 6)]


def place_of(name: str) -> tuple[str, int]:
    """Where a method is killed, by its name alone: a new method leaves the places of the others."""
    return PLACES[zlib.crc32(name.encode(), 34) % len(PLACES)]  # 34 spreads the first six methods over all places


# Each method at one place, and one of them at all ends.
CASES = [*((name, place_of(name)) for name in NAMES), *(("DINO", ("end", at)) for at in range(3))]


def test_every_place_has_a_method() -> None:
    assert {place_of(name) for name in NAMES} == set(PLACES)


@pytest.mark.parametrize(("method", "place"), CASES, ids=[f"{name}-{where}-{at}" for name, (where, at) in CASES])
def test_killed_once(method: str, place: tuple[str, int], tmp_path: Path, run: Runs, untouched: Untouched) -> None:
    left = killed_and_continued(run, method, tmp_path / "run", *place, untouched[method])
    queue = left.get("joint", {}).get("method.queue")
    if queue is not None and queue.ndim == 3 and place == ("step", 13):  # of pairs: it was being filled
        filled = queue.abs().sum((1, 2)) > 0
        assert 0 < int(filled.sum()) < len(filled)


def test_killed_in_half_precision(tmp_path: Path, run: Runs, untouched: Untouched) -> None:
    """The scale of the loss is part of the state: it falls in the first steps, and then rises and falls."""
    method = f"DINO{HALF}"
    left = killed_and_continued(run, method, tmp_path / "run", "step", 13, untouched[method])
    assert left["loss_scale"]["scale"] < FIRST_SCALE
    lines = list(Run(untouched[method]).metrics())
    skipped = [line["skipped"] for line in lines if "skipped" in line]
    assert 0 < sum(skipped) < len(skipped)
    scales = [line["loss_scale"] for line in lines if "loss_scale" in line]
    assert len(set(scales)) > 1
    assert all(math.log2(scale).is_integer() for scale in scales)  # each is that of one step, not a mean
    assert torch.load(untouched[method] / "last.ckpt", weights_only=True)["loss_scale"] != left["loss_scale"]


@pytest.mark.long
@pytest.mark.parametrize("point", range(5))
@pytest.mark.parametrize("method", NAMES)
def test_killed_anywhere(method: str, point: int, tmp_path: Path, run: Runs, untouched: Untouched) -> None:
    draw = random.Random(f"{method} {point}")
    where = draw.choice(["step", "step", "refresh", "checkpoint"])
    at = draw.randrange({"step": STEPS, "refresh": 8, "checkpoint": EPOCHS}[where])
    killed_and_continued(run, method, tmp_path / "run", where, at, untouched[method])
