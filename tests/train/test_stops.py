"""SIGTERM, SIGINT, SIGUSR1 and SIGKILL to a process and to its group: saved where they can be, equal bits at the end.

HIRL_STOPS=100 python -m pytest -n 0 -m long tests/train/test_stops.py -s

makes 100 stops in training, clustering, fine-tuning and detection.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ..drawn_set import draw_set
from ..jobs import STOPPED, Jobs
from .stopped_jobs import draw
from .test_killed import same

STOPS = int(os.environ.get("HIRL_STOPS", "100"))
KINDS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGKILL")


class Job(NamedTuple):
    task: str
    where: str
    processes: int = 1


PLACES = (Job("train", "step"), Job("train", "step", 2), Job("train", "clustering"), Job("train", "clustering", 2),
          Job("finetune", "step"), Job("detection", "step"))  # fmt: skip


class Stops:
    """Starts jobs, with the end of an undisturbed one per task to compare with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, Jobs("train.stopped_jobs")
        draw(folder / "pictures")
        document = draw_set(folder / "boxes")
        (folder / "boxes" / "annotations").mkdir(exist_ok=True)
        for part in ("train", "val"):
            (folder / "boxes" / "annotations" / f"instances_{part}.json").write_text(json.dumps(document))
        self.ends: dict[tuple[str, int], Any] = {}

    def __call__(
        self,
        job: Job,
        folder: Path,
        where: str = "never",
        at: int = 0,
        kind: str = "",
        group: bool = False,
        rank: int = 0,
    ) -> tuple[int, str]:
        folder.mkdir(exist_ok=True, parents=True)
        shot: dict[str, Any] = {"where": where, "at": at, "kind": kind, "group": group, "rank": rank}
        return self.jobs(processes=job.processes, task=job.task, folder=str(folder), data=str(self.folder), **shot)

    def check_end(self, job: Job, folder: Path) -> None:
        """Continue a stopped job and compare it with one that was left alone."""
        code, output = self(job, folder)
        assert code == 0, output
        if (job.task, job.processes) not in self.ends:
            alone = self.folder / f"alone-{job.task}-{job.processes}"
            code, output = self(job, alone)
            assert code == 0, output
            self.ends[job.task, job.processes] = end_of(alone)
        same(self.ends[job.task, job.processes], end_of(folder))


def end_of(folder: Path) -> dict[str, Any]:
    """All that training leaves."""
    files = {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}
    files |= {file.name: json.loads(file.read_text())["headline"] for file in folder.glob("finetune-*.json")}
    states = {file.name: torch.load(file, weights_only=True) for file in folder.rglob("*.ckpt")}
    assert states
    return states | files


def reached(folder: Path) -> int:
    """The step of the last checkpoint."""
    return max((torch.load(file, weights_only=True)["step"] for file in folder.rglob("*.ckpt")), default=0)


def check_stopped(code: int, output: str, kind: str) -> None:
    """One sentence, no traceback; SIGKILL says nothing."""
    if kind == "SIGKILL":
        assert code == -signal.SIGKILL, output
        return
    assert code == STOPPED, output
    assert "Traceback" not in output
    assert output.count("the same command continues") == 1, output


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stops]:
    stops = Stops(tmp_path_factory.mktemp("stops"))
    yield stops
    stops.jobs.close()


@pytest.mark.parametrize(
    ("job", "at", "kind", "group", "saved"),
    [
        (PLACES[0], 4, "SIGTERM", True, 5),
        (PLACES[1], 4, "SIGUSR1", False, 5),
        (PLACES[2], 2, "SIGINT", True, 3),
        (PLACES[4], 3, "SIGTERM", True, 4),
        (PLACES[5], 1, "SIGINT", True, 2),
        (PLACES[0], 4, "SIGKILL", False, 3),  # its worker lives on for a while
    ],
)
def test_a_stop_saves_the_last_step(
    job: Job, at: int, kind: str, group: bool, saved: int, stops: Stops, tmp_path: Path
) -> None:
    code, output = stops(job, tmp_path / "run", job.where, at, kind, group)
    check_stopped(code, output, kind)
    assert reached(tmp_path / "run") == saved
    stops.check_end(job, tmp_path / "run")


@pytest.mark.long
def test_stopped_at_random_it_ends_in_equal_bits(stops: Stops, tmp_path: Path) -> None:
    draws = random.Random(0)
    for number, (kind, group, job) in enumerate(islice(cycle(product(KINDS, (False, True), PLACES)), STOPS)):
        folder = tmp_path / str(number)
        rank = draws.randrange(job.processes)
        limit = {"train": 9, "finetune": 11, "detection": 3}[job.task] if job.where == "step" else 6
        code, output = stops(job, folder, job.where, draws.randrange(limit), kind, group, 0 if group else rank)
        try:
            check_stopped(code, output, kind)
            stops.check_end(job, folder)
        except AssertionError as error:
            raise AssertionError(f"stop {number}: {kind}, group {group}, {job}: {error}") from error
        print(f"{number + 1} of {STOPS}: {kind} to the {'group' if group else 'process'}, {job}: equal bits")
        shutil.rmtree(folder)
