"""SIGKILL at random steps, over all methods, one and two processes, training and fine-tuning: equal bits at the end.

Two processes are compared with two that were left alone. The sum of two numbers does not depend on their order, so
their bits are equal too.

    HIRL_KILLS=100 python -m pytest -n 0 -m long tests/train/test_kills.py -s

makes 100 kills; fewer are spread over the same cases.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from ..small_methods import NAMES
from .killed_processes import Server
from .test_killed import same

KILLS = int(os.environ.get("HIRL_KILLS", "100"))
CASES = list(product(("train", "finetune"), (1, 2), NAMES))  # training first: its runs are then fine-tuned


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


def end_of(task: str, folder: Path) -> Any:
    """All that training leaves: the state and the encoder, or the classifier and its figures."""
    if task == "train":
        files = {name: (folder / name).read_bytes() for name in ("encoder.safetensors", "tree.safetensors")}
        return {"state": torch.load(folder / "last.ckpt", weights_only=True), **files}
    (result,) = folder.glob("finetune-*.json")
    trained = torch.load(result.with_suffix("") / "finetune.ckpt", weights_only=True)
    return {"classifier": trained, "headline": json.loads(result.read_text())["headline"]}


def reached(folder: Path) -> int:
    """The step of the last checkpoint."""
    return max((torch.load(file, weights_only=True)["step"] for file in folder.rglob("*.ckpt")), default=0)


@pytest.mark.long
def test_killed_at_random_it_ends_in_equal_bits(server: Server, tmp_path: Path) -> None:
    draw = random.Random(0)
    start, made, continued = time.monotonic(), 0, 0
    for number, (task, processes, method) in enumerate(CASES):
        alone, folder = (tmp_path / f"{kind}-{task}-{processes}-{method}" for kind in ("alone", "killed"))
        job: dict[str, Any] = {"task": task, "method": method, "encoder": str(tmp_path / f"alone-train-1-{method}")}
        code, output = server(alone, processes=processes, **job)
        assert code == 0, output
        kills = (number + 1) * KILLS // len(CASES) - number * KILLS // len(CASES)
        for _ in range(kills):
            where = draw.choice(["step", "step", "checkpoint"])
            rank = 0 if where == "checkpoint" else draw.randrange(processes)  # the first process writes
            # At most two of twelve steps further per kill, so that five kills find work to interrupt.
            code, output = server(folder, processes=processes, where=where, at=draw.randrange(3), rank=rank, **job)
            assert code == -signal.SIGKILL, output
            made += 1
            continued += reached(folder) > 0
        code, output = server(folder, processes=processes, **job)
        assert code == 0, output
        same(end_of(task, alone), end_of(task, folder))
        print(f"{task}, {method}, {processes} processes: equal bits; {made} kills, {time.monotonic() - start:.0f} s")
    assert made == KILLS
    assert continued >= KILLS // 2
