"""Small pictures that colours tell apart, and subjects to evaluate on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hirl.backbones import make_backbone
from hirl.data.loader import EvaluationLoader, normalisation
from hirl.data.shapes import Shapes
from hirl.data.sources.arrays import ArrayImages
from hirl.evals.base import Part, Subject
from hirl.run import Run

SIZE = 16
COLOURS = ((200, 60, 60), (200, 140, 60), (60, 60, 200), (60, 140, 200))  # two warm ones, two cold ones
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("resnet10t", {"channels": [8, 8, 16, 16]}),
    "vit": (
        "vit_tiny_patch16_224",
        {"img_size": SIZE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2},
    ),
}


def coloured(count: int, seed: int, name: str) -> ArrayImages:
    """`count` images of each of four classes within two, with much noise around their colour."""
    random = np.random.default_rng(seed)
    fine = np.tile(np.arange(4), count)
    tint = np.array(COLOURS)[fine][:, :, None, None] + random.normal(0, 10, (len(fine), 3, 1, 1))
    pixels = (tint + random.normal(0, 40, (len(fine), 3, SIZE, SIZE))).clip(0, 255).astype(np.uint8)
    return ArrayImages(
        name=name,
        pixels=torch.from_numpy(pixels),
        labels=torch.from_numpy(np.stack([fine, fine // 2], axis=1)),
        label_names=(("red", "orange", "blue", "azure"), ("warm", "cold")),
    )


@pytest.fixture
def coloured_subject() -> Callable[..., Subject]:
    """Makes a subject: an untrained encoder and coloured images, 40 a class to learn from and 25 to be asked."""

    def make(kind: str = "cnn", *, count: int = 40, **changes: Any) -> Subject:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            backbone, args = BACKBONES[kind]
            encoder = make_backbone(backbone, **args).eval().requires_grad_(False)
        parts = {"train": coloured(count, 1, "train"), "test": coloured(25, 2, "test")}

        def features(part: Part) -> Tensor:
            with torch.no_grad():
                return torch.cat([encoder(batch.views[0]) for batch in EvaluationLoader(parts[part], size=SIZE)])

        settings: dict[str, Any] = {
            "name": kind,
            "encoder": encoder,
            "image_size": SIZE,
            "normalisation": normalisation(parts["train"]),
            "features": features,
            **parts,
        }
        return Subject(**(settings | changes))

    return make


def shapes(split: str = "train", **changes: Any) -> Shapes:
    settings: dict[str, Any] = {"images": 144, "size": 16, "cache": False}
    return Shapes(split=split, **(settings | changes))


@pytest.fixture(scope="session")
def picture_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .npz of drawn pictures in two parts, with labels at three levels."""
    path = tmp_path_factory.mktemp("pictures") / "shapes.npz"
    parts = {part: shapes(part) for part in ("train", "val")}
    arrays = {f"{part}_images": drawn.pixels.numpy() for part, drawn in parts.items()}
    arrays |= {f"{part}_labels": drawn.labels.numpy() for part, drawn in parts.items()}
    np.savez(path, allow_pickle=False, **arrays)
    return path


@pytest.fixture(scope="session")
def trained_runs(picture_files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two short runs on the pictures: with the hierarchy, and the baseline."""
    from hirl.methods import MoCoV2
    from hirl.train.hierarchy import Hierarchy
    from hirl.train.pretrain import pretrain

    folder = tmp_path_factory.mktemp("runs")
    for arm, hierarchy in (("hirl", Hierarchy(levels=(24, 6), negatives=5, start_epoch=1)), ("base", None)):
        method = MoCoV2(
            backbone="resnet10t",
            backbone_args={"channels": [8, 8, 16, 16]},
            dim=16,
            queue_length=96,
            bn_splits=2,
            momentum=0.9,
        )
        options: dict[str, Any] = {"epochs": 2, "batch_size": 48, "accelerator": "cpu", "devices": 1, "knn_every": 0}
        pretrain(str(picture_files), method, hierarchy, out=folder / arm, **options)
    return {arm: folder / arm for arm in ("hirl", "base")}


@pytest.fixture
def runs(trained_runs: dict[str, Path], tmp_path: Path) -> dict[str, Run]:
    """Copies of the two runs that a test may write into."""
    return {arm: Run(shutil.copytree(folder, tmp_path / "runs" / arm)) for arm, folder in trained_runs.items()}
