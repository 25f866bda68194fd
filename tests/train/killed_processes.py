"""Small runs and evaluations on one or two processes, any of which can be killed; used by two test modules.

Run as a module, it reads jobs from stdin, one line of JSON per job. For each it forks as many processes as asked for,
which saves them the time for imports, and prints the exit code of the first one that ended with an error, and the
output of all.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hirl import methods
from hirl.data import Shapes
from hirl.evals import KNN, Clustering, Evaluation, FineTune, Linear, SemiSupervised, Transfer, resumable
from hirl.evals.classifier_training import ClassifierTraining
from hirl.evals.evaluate import evaluate
from hirl.hierarchy.settings import Hierarchy
from hirl.train import loop
from hirl.train.pretrain import pretrain

from .killed_run import BATCH, LOADED_LATE, METHODS, VIT, arm, die

EPOCHS, IMAGES = 3, 64
LATE = (*LOADED_LATE, "timm.data.auto_augment", "timm.data.mixup", "timm.data.random_erasing", "timm.optim")


def arm_evaluation(where: str, at: int) -> None:
    """Kill the process before the `at`-th step of a classifier, or in the middle of writing the `at`-th checkpoint."""
    if where == "checkpoint":
        arm(where, at)
        return
    count = 0
    step = ClassifierTraining._step

    def stepped(self: Any, *arguments: Any) -> float:
        nonlocal count
        count += 1
        if count > at:
            die()
        return step(self, *arguments)

    ClassifierTraining._step = stepped  # type: ignore[method-assign, assignment]


def train(images: Shapes, method: str, folder: str, processes: int) -> None:
    # SwAV looks up an image's leaf at every step.
    assign: Any = "step" if method == "SwAV" else "stored"
    pretrain(
        images,
        getattr(methods, method)(**METHODS[method]),
        Hierarchy(levels=(8, 4), negatives=3, start_epoch=1, assign=assign),
        out=folder,
        epochs=EPOCHS,
        batch_size=BATCH,
        accelerator="cpu",
        devices=processes,
        checkpoint_minutes=0.0,
        knn_every=0,
        workers=0,
    )


TASKS: dict[str, Evaluation] = {
    "finetune": FineTune(epochs=4, batch_size=16),
    "semisup": SemiSupervised(shares=(0.5, 1.0), epochs=2, batch_size=8),
    "transfer": Transfer(epochs=2, batch_size=16, accumulate=2),
    "linear": Linear(setting="IBOT", epochs=3, batch_size=16),
    "knn": KNN(ks=(5,)),
    "clustering": Clustering(restarts=1),
}


def figures(encoder: str, task: str, data: str, folder: str) -> None:
    """Evaluate a run's encoder, or a tiny transformer, saving every step of training."""
    resumable.SAVE_EVERY = 0.0
    named: dict[str, Any] = {"backbone_args": VIT["backbone_args"]} if encoder == VIT["backbone"] else {}
    options: dict[str, Any] = {"device": "cpu", "workers": 0, "quiet": True, "cache": str(Path(data).parent / "cache")}
    evaluate(encoder, TASKS[task], data=data, out=folder, **options, **named)


def rank_main(images: Shapes, job: dict[str, Any], rank: int, port: int) -> None:
    processes = job["processes"]
    torch.set_num_threads(1)
    loop.SYNC_EVERY = 1  # or two processes would save at the end of epochs alone
    if processes > 1:
        group = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
        os.environ.update(group | {"LOCAL_WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank)})
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if job["where"] != "never" and rank == job["rank"]:
        (arm if job["task"] == "train" else arm_evaluation)(job["where"], job["at"])
    if job["task"] == "train":
        train(images, job["method"], job["folder"], processes)
    else:
        figures(job["encoder"], job["task"], job["data"], job["folder"])


def in_processes(images: Shapes, job: dict[str, Any]) -> dict[str, Any]:
    """Run the job in processes of its own, all of which end if one of them is killed."""
    captured = Path(job["folder"]).with_suffix(".txt")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(job["processes"]):
        child = os.fork()
        if child == 0:
            output = os.open(captured, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = 1
            try:
                rank_main(images, job, rank, port)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # without the cleanup of the script
        children.append(child)
    code = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        ended = os.waitstatus_to_exitcode(status)
        if ended and not code:
            code = ended
            for other in children:  # as torchrun does
                os.kill(other, signal.SIGKILL)
    return {"code": code, "output": captured.read_text()[-4000:]}


class Server:
    """Runs jobs through this module in a process of its own; returns the exit code and the output."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "shapes.npz"
        self.script = subprocess.Popen(
            [sys.executable, "-m", "train.killed_processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[1],
        )
        parts = {part: Shapes(images=48, size=16, split=part, cache=False) for part in ("train", "val")}
        arrays = {f"{part}_images": drawn.pixels.numpy() for part, drawn in parts.items()}
        arrays |= {f"{part}_labels": drawn.labels[:, 2].numpy() for part, drawn in parts.items()}
        np.savez(self.data, allow_pickle=False, **arrays)

    def __call__(
        self, folder: Path, *, where: str = "never", at: int = 0, rank: int = 0, processes: int = 1, **job: str
    ) -> tuple[int, str]:
        """`job`: the task, train or an evaluation, and the method or the encoder."""
        assert self.script.stdin is not None
        assert self.script.stdout is not None
        more: dict[str, Any] = {"folder": str(folder), "where": where, "at": at, "rank": rank, "processes": processes}
        self.script.stdin.write(json.dumps(job | more | {"data": str(self.data)}) + "\n")
        self.script.stdin.flush()
        answer = json.loads(self.script.stdout.readline())
        return answer["code"], answer["output"]

    def close(self) -> None:
        self.script.communicate(timeout=60)


def main() -> None:
    torch.set_num_threads(1)
    for name in LATE:
        importlib.import_module(name)
    images = Shapes(images=IMAGES, size=16, cache=False)
    for line in sys.stdin:
        print(json.dumps(in_processes(images, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
