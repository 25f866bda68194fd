"""Small detectors trained on drawn pictures, each in a process of its own that can be killed if run as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from hirl.data.annotations.annotated_images import DetectionSet
from hirl.data.annotations.detection_folder import open_detection
from hirl.data.views.normalisation import Normalisation
from hirl.encoders.backbones import make_backbone
from hirl.evals.detection.detector import Detector, freeze_unused, make_detector
from hirl.evals.detection.detector_training import Training
from hirl.evals.detection.regions import HeadSizes
from hirl.evals.detection.samples import TrainingSamples
from hirl.evals.detection.schedule import Schedule, published
from hirl.evals.detection.transforms import Augmentation
from hirl.methods.facts import Facts

from ...jobs import kill_before, kill_in_checkpoint, serve

NORMALISATION = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "c4": ("resnet18", {"layers": [1, 1, 1, 3], "channels": [8, 16, 32, 64]}),
    "cascade": (
        "vit_tiny_patch16_224",
        {"img_size": 64, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    ),
}


def prepared(
    images: DetectionSet,
    family: str,
    *,
    sizes: HeadSizes,
    side: int = 56,
    segment: bool = True,
    crops: bool | None = None,
    **schedule: Any,
) -> tuple[Detector, Schedule, TrainingSamples]:
    torch.manual_seed(0)
    name, arguments = BACKBONES[family]
    detector = make_detector(make_backbone(name, **arguments), len(images.categories), segment=segment, sizes=sizes)
    freeze_unused(detector)
    plan = published(detector, Facts()).for_images(len(images), short_sides=(side,), **schedule)
    cut = plan.crops if crops is None else crops
    augmentation = Augmentation(plan.short_sides, plan.long_side, cut)
    return detector, plan, TrainingSamples(images, augmentation, seed=0, segment=segment)


def train(folder: Path, family: str, checkpoint_file: Path | None, **options: Any) -> Detector:
    """A few steps on small heads; a checkpoint after every step."""
    images = open_detection(folder, "train", segment=True)
    fabric = Fabric(accelerator="cpu", devices=1, precision=options.pop("precision", "32-true"))
    sizes = HeadSizes(regions=8, proposals=10, channels=8, hidden=16)
    extra = {
        name: options.pop(name)
        for name in ("accumulate", "identity", "workers", "save_every", "message")
        if name in options
    }
    detector, plan, samples = prepared(
        images, family, sizes=sizes, **({"epochs": 4, "batch_size": 2, "lr": 0.02} | options)
    )
    settings: dict[str, Any] = {"identity": "small", "checkpoint": checkpoint_file, "save_every": 0.0} | extra
    Training(
        fabric=fabric, network=detector, schedule=plan, samples=samples, normalisation=NORMALISATION, **settings
    ).fit()
    return detector


def job(folder: str, family: str, checkpoint_file: str, where: str, at: int) -> None:
    """Train, and die before a step, or in the middle of writing a checkpoint."""
    if where == "step":
        kill_before(Training, "_step", at)
    elif where == "checkpoint":
        kill_in_checkpoint(at)
    train(Path(folder), family, Path(checkpoint_file))


if __name__ == "__main__":
    serve(job)
