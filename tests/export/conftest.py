"""Runs with a tree, a CNN and a transformer, each of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hirl.hierarchy.settings import Hierarchy
from hirl.methods import DINO
from hirl.train.pretrain import pretrain


@pytest.fixture(scope="session")
def vit_run(picture_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}
    method = DINO(backbone="vit_tiny_patch16_224", backbone_args=small, dim=16, hidden=32, prototypes=32, local_crops=0)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 48, "accelerator": "cpu", "devices": 1}
    hierarchy = Hierarchy(levels=(24, 6), negatives=5, start_epoch=1)
    return pretrain(str(picture_files), method, hierarchy, out=tmp_path_factory.mktemp("vit") / "run", **options).folder


@pytest.fixture(params=["cnn", "vit"])
def run(request: pytest.FixtureRequest, trained_runs: dict[str, Path]) -> Path:
    return trained_runs["hirl"] if request.param == "cnn" else request.getfixturevalue("vit_run")
