"""Small training, fine-tuning and detection on files read by workers, stopped by a signal: jobs of test_stops.py."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from PIL import Image

from hirl.data import Shapes
from hirl.evals import FineTune
from hirl.evals.detection.detector_training import Training
from hirl.evals.evaluate import evaluate
from hirl.evals.training import resumable
from hirl.evals.training.classifier_training import ClassifierTraining
from hirl.hierarchy.settings import Hierarchy
from hirl.train import loop
from hirl.train.pretrain import pretrain

from ..evals.detection import small_training
from ..jobs import Shot, kill_before, serve
from ..small_methods import vit
from .killed_processes import LATE
from .killed_run import kill_in_clustering, small

TRAINERS: dict[str, type] = {"train": loop.Loop, "finetune": ClassifierTraining, "detection": Training}
IMAGES, BATCH, EPOCHS = 48, 16, 3


def draw(folder: Path) -> None:
    """Pictures as files, in folders of splits and classes."""
    for split in ("train", "val"):
        drawn = Shapes(images=IMAGES, size=16, split=split, cache=False)
        for place, label in enumerate(drawn.labels[:, 2].tolist()):
            file = folder / split / str(label) / f"{place}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawn.read(place).permute(1, 2, 0).numpy()).save(file)


def work(*, task: str, folder: str, data: str, where: str, at: int, rank: int, kind: str, group: bool) -> None:
    """`where`: never, or before a step or at a chunk of a clustering, of the process of that rank."""
    resumable.SAVE_EVERY = 1e6  # what is saved was saved because of the signal
    if rank == int(os.environ.get("RANK", "0")):
        if where == "step":
            kill_before(TRAINERS[task], "_step", at, Shot(kind, group))
        elif where == "clustering":
            kill_in_clustering(at, Shot(kind, group))
    if task == "train":
        hierarchy = Hierarchy(levels=(8, 4), negatives=3, start_epoch=1)
        options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "image_size": 16, "knn_every": 0}
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        options |= {"accelerator": "cpu", "devices": processes, "workers": 1}
        pretrain(f"{data}/pictures", small("DINO"), hierarchy, out=folder, **options)
    elif task == "finetune":
        tiny = vit(16)
        options = {"image_size": 16, "device": "cpu", "workers": 1, "cache": None}
        evaluate("random:" + tiny["backbone"], FineTune(epochs=4, batch_size=16), data=f"{data}/pictures", out=folder,
                 backbone_args=tiny["backbone_args"], **options)  # fmt: skip
    else:
        small_training.train(
            Path(data) / "boxes", "cascade", Path(folder) / "detector.ckpt", workers=1, save_every=1e6, message=print
        )


if __name__ == "__main__":
    for name in LATE:
        importlib.import_module(name)
    serve(work)
