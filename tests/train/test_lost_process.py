"""One of several processes is lost: the others end with a sentence, and the same command continues to the same bits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hirl import Run

from ..jobs import Jobs
from .test_killed import same
from .test_processes import CONFIG

SHORT = {"epochs": 3, "hierarchy": {"levels": [12, 4], "negatives": 5, "start_epoch": 1}, "checkpoint_minutes": 0.0}
SENTENCE = "hirl: process {} of {} ends because another one was lost"
LIMIT = 120  # seconds for the others to end, on a busy machine


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    jobs = Jobs("train.lost_process")
    yield jobs
    jobs.close()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("set")
    images = np.random.default_rng(0).integers(0, 256, (200, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=images)
    config = deepcopy(CONFIG | SHORT)
    config["method"]["init_args"]["bn_splits"] = 4
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return ["pretrain", str(folder / "images.npz"), "--config", str(folder / "config.yaml"), "--out"]


def same_ends(one: Path, other: Path) -> None:
    same(*(torch.load(folder / "last.ckpt", weights_only=True) for folder in (one, other)))
    for name in ("encoder.safetensors", "tree.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def lose(jobs: Jobs, line: list[str], *, processes: int, **point: Any) -> None:
    """Kill one process; all others end with one sentence each, soon, by themselves."""
    start = time.monotonic()
    code, output = jobs(processes=processes, stop=False, line=line, **point)
    assert code in (-signal.SIGKILL, 2), output  # of whichever was waited for first
    assert time.monotonic() - start < LIMIT
    assert "Traceback" not in output
    for rank in range(processes):
        assert output.count(SENTENCE.format(rank, processes)) == (rank != point["rank"]), output
    assert output.count("the same command continues") == processes - 1


def test_a_process_lost_in_an_epoch_on_two_machines(jobs: Jobs, command: list[str], tmp_path: Path) -> None:
    alone, lost = (str(tmp_path / name) for name in ("alone", "lost"))
    four: dict[str, Any] = {"processes": 4, "nodes": 2}
    code, output = jobs(line=[*command, alone], where="never", at=0, rank=0, **four)
    assert code == 0, output
    lose(jobs, [*command, lost], where="epoch", at=3, rank=3, **four)
    code, output = jobs(line=[*command, lost], where="never", at=0, rank=0, **four)
    assert code == 0, output
    assert "continues at step 3 of 6" in output
    same_ends(Path(alone), Path(lost))


def test_the_first_process_lost_in_kmeans_and_continued_by_fewer(
    jobs: Jobs, command: list[str], tmp_path: Path
) -> None:
    line = [*command, str(tmp_path / "run")]
    lose(jobs, line, processes=2, where="kmeans", at=4, rank=0)
    code, output = jobs(line=line, where="never", at=0, rank=0)
    assert code == 0, output
    assert "continues at step 2 of 6" in output
    assert Run(tmp_path / "run").finished


MORTAL = """
import os, signal
from hirl.methods import MoCoV2
from hirl.train import loop

loop.SYNC_EVERY = 1

class Mortal(MoCoV2):
    def forward(self, views, masks, step):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and step == 3 and os.environ["RANK"] == "3" and os.environ["MORTAL"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(views, masks, step)
"""


@pytest.mark.long
def test_torchrun_restarts_after_a_loss(command: list[str], tmp_path: Path) -> None:
    """Two torchruns of two processes each, as on two machines; the last of the four processes is killed once."""
    (tmp_path / "mortal_method.py").write_text(MORTAL)
    path = {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    network = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    options = ["--method", "mortal_method.Mortal", "--method.queue_length", "100", "--method.dim", "16"]
    options += ["--method.backbone", "resnet10t", "--method.bn_splits", "4", "--method.lr", "0.001"]
    for mortal in ("0", "1"):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        start = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "2"]
        start += ["--max_restarts", "5", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{port}"]
        start += ["--local_addr", "localhost", "-m", "hirl.cli.main"]
        agents = [
            subprocess.Popen(
                [*start, *command, str(tmp_path / mortal), *options],
                env=os.environ | path | network | {"MORTAL": mortal},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(2)
        ]
        output = "".join(agent.communicate(timeout=900)[0] for agent in agents)
        assert [agent.returncode for agent in agents] == [0, 0], output
        assert ("continues at step 3 of 6" in output) == (mortal == "1"), output
    same_ends(tmp_path / "0", tmp_path / "1")
