"""Small runs and evaluations on one or two processes, any of which can be killed; used by two test modules."""

from __future__ import annotations

import importlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hirl.data import Shapes
from hirl.evals import KNN, Clustering, Evaluation, FineTune, Linear, SemiSupervised, Transfer
from hirl.evals.evaluate import evaluate
from hirl.evals.training import resumable
from hirl.evals.training.classifier_training import ClassifierTraining
from hirl.hierarchy.settings import Hierarchy
from hirl.train import loop
from hirl.train.pretrain import pretrain

from ..jobs import Jobs, kill_before, kill_in_checkpoint, serve
from ..small_methods import vit
from .killed_run import BATCH, LOADED_LATE, small

EPOCHS, IMAGES = 3, 64
LATE = (*LOADED_LATE, "timm.data.auto_augment", "timm.data.mixup", "timm.data.random_erasing", "timm.optim")


def train(images: Shapes | str, method: str, folder: str, processes: int) -> None:
    pretrain(
        images,
        small(method),
        Hierarchy(levels=(8, 4), negatives=3, start_epoch=1),
        out=folder,
        epochs=EPOCHS,
        batch_size=BATCH,
        image_size=16,
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
    tiny = vit(16)
    named: dict[str, Any] = {"backbone_args": tiny["backbone_args"]} if encoder == tiny["backbone"] else {}
    options: dict[str, Any] = {"device": "cpu", "workers": 0, "quiet": True, "cache": str(Path(data).parent / "cache")}
    evaluate(encoder, TASKS[task], data=data, out=folder, **options, **named)


def work(images: Shapes, *, task: str, where: str, at: int, rank: int, folder: str, **job: str) -> None:
    """Train or evaluate; the process of that rank is killed before a step or in the middle of a checkpoint."""
    loop.SYNC_EVERY = 1  # or two processes would save at the end of epochs alone
    if where != "never" and rank == int(os.environ.get("RANK", "0")):
        if where == "checkpoint":
            kill_in_checkpoint(at)
        else:
            kill_before(loop.Loop if task == "train" else ClassifierTraining, "_step", at)
    if task == "train":
        train(job.get("source", images), job["method"], folder, processes=int(os.environ.get("WORLD_SIZE", "1")))
    else:
        figures(job["encoder"], task, job["data"], folder)


class Server:
    """Runs jobs through this module in a process of its own; returns the exit code and the output."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "shapes.npz"
        self.jobs = Jobs("train.killed_processes")
        parts = {part: Shapes(images=48, size=16, split=part, cache=False) for part in ("train", "val")}
        arrays = {f"{part}_images": drawn.pixels.numpy() for part, drawn in parts.items()}
        arrays |= {f"{part}_labels": drawn.labels[:, 2].numpy() for part, drawn in parts.items()}
        np.savez(self.data, allow_pickle=False, **arrays)

    def __call__(
        self, folder: Path, *, where: str = "never", at: int = 0, rank: int = 0, processes: int = 1, **job: Any
    ) -> tuple[int, str]:
        """`job`: the task, train or an evaluation, and the method or the encoder."""
        point: dict[str, Any] = {"where": where, "at": at, "rank": rank}
        return self.jobs(processes=processes, folder=str(folder), data=str(self.data), **point, **job)

    def close(self) -> None:
        self.jobs.close()


if __name__ == "__main__":
    for name in LATE:
        importlib.import_module(name)
    serve(partial(work, Shapes(images=IMAGES, size=16, cache=False)))
