"""One of several processes is lost: the others end with a sentence, and the same command continues to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hirl import Run

from ..forked import free_port
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


@pytest.mark.parametrize("processes", [1, 4])
def test_the_first_process_lost_in_kmeans_and_continued_by_fewer_or_more(
    jobs: Jobs, command: list[str], tmp_path: Path, processes: int
) -> None:
    line = [*command, str(tmp_path / "run")]
    lose(jobs, line, processes=2, where="kmeans", at=4, rank=0)
    code, output = jobs(line=line, processes=processes, where="never", at=0, rank=0)
    assert code == 0, output
    assert "continues at step 2 of 6" in output
    assert Run(tmp_path / "run").finished


MORTAL = """
import os, signal
from contextlib import suppress
from pathlib import Path
from hirl.hierarchy.lloyd import Lloyd
from hirl.methods import MoCoV2
from hirl.train import loop

loop.SYNC_EVERY = 1
means = Lloyd._means

def die(where, rank):
    # once, whatever is restarted
    if where in os.environ["MORTAL"].split() and os.environ["RANK"] == rank:
        with suppress(FileExistsError), Path(__file__).with_name(f"{os.environ['MORTAL']}-{where}").open("x"):
            os.kill(os.getpid(), signal.SIGKILL)

def mortal_means(self, *arguments):
    die("kmeans", "0")
    return means(self, *arguments)

Lloyd._means = mortal_means

class Mortal(MoCoV2):
    def forward(self, views, masks, step):
        if step == 3:
            die("epoch", "1")
        return super().forward(views, masks, step)
"""


@pytest.fixture(scope="module")
def torchrun(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, str]]:
    """Run two processes by torchrun, which kill themselves once each at the points of `mortal`."""
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "mortal_method.py").write_text(MORTAL)
    path = {"PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))}
    known = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    options = ["--method", "mortal_method.Mortal", "--method.queue_length", "100", "--method.dim", "16"]
    options += ["--method.backbone", "resnet10t", "--method.bn_splits", "4", "--method.lr", "0.001"]

    def run(name: str, *, mortal: str = "", nodes: int = 1, restarts: int = 2) -> tuple[Path, str]:
        start = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--max_restarts", str(restarts)]
        start += ["--nproc_per_node", str(2 // nodes), "--local_addr", "localhost", "--rdzv_backend", "c10d"]
        start += ["--rdzv_endpoint", f"localhost:{free_port()}", "-m", "hirl.cli.main"]
        with ExitStack() as held:
            agents = []
            for node in range(nodes):
                log = held.enter_context((folder / f"{name}-{node}.log").open("w+"))
                line = [*start, *command, str(folder / name), *options]
                line[3:3] = ["--node_rank", str(node)]
                environment = os.environ | path | known | {"MORTAL": mortal}
                agents.append(subprocess.Popen(line, env=environment, stdout=log, stderr=subprocess.STDOUT))
            codes = [agent.wait(timeout=900) for agent in agents]
        output = "".join((folder / f"{name}-{node}.log").read_text() for node in range(nodes))
        assert codes == [0] * nodes, output
        assert all((folder / f"{mortal}-{where}").exists() for where in mortal.split()), output
        return folder / name, output

    return run


@pytest.mark.long
def test_torchrun_restarts_after_losses_in_an_epoch_and_in_kmeans(torchrun: Callable[..., tuple[Path, str]]) -> None:
    alone, output = torchrun("alone")
    assert "continues at" not in output
    lost, output = torchrun("lost", mortal="epoch kmeans")
    assert "continues at step 3 of 6" in output
    assert "continues at step 2 of 6" in output
    same_ends(alone, lost)
    # two torchruns, as on two machines, do not notice a loss at the same time, so that there may be several restarts
    nodes, output = torchrun("nodes", mortal="epoch", nodes=2, restarts=5)
    assert "continues at step 3 of 6" in output
    same_ends(alone, nodes)
