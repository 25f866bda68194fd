"""Runs with a tree, each of a second: a CNN, a transformer, and a frozen network with an adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hirl.encoders.backbones import make_backbone
from hirl.encoders.encoder_file import EncoderMetadata, save_encoder
from hirl.export import export_encoder
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import DINO, MoCoV2
from hirl.train.pretrain import pretrain

SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 48, "accelerator": "cpu", "devices": 1, "workers": 0}
HALVES = (0.5, 0.5, 0.5)


@pytest.fixture(scope="session")
def vit_run(picture_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}
    method = DINO(backbone="vit_tiny_patch16_224", backbone_args=small, dim=16, hidden=32, prototypes=32, local_crops=0)
    hierarchy = Hierarchy(levels=(24, 6), negatives=5, start_epoch=1)
    return pretrain(str(picture_files), method, hierarchy, out=tmp_path_factory.mktemp("vit") / "run", **SHORT).folder


@pytest.fixture(scope="session")
def adapted_run(picture_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `hirl pretrain photos/` trains it: no heads, and a tree of Ward linkage over reduced features."""
    folder = tmp_path_factory.mktemp("adapted")
    small: dict[str, Any] = {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16]}
    torch.manual_seed(0)
    network = make_backbone("resnet18", **small)
    nn.init.normal_(network.get_parameter("layer4.0.bn2.weight"))  # zero at first, as in all of timm's
    save_encoder(folder / "start.safetensors", network, EncoderMetadata("resnet18", small, 16, HALVES, HALVES))
    method = MoCoV2(backbone="resnet18", backbone_args={**small, "adapter": 8}, dim=6, queue_length=48, bn_splits=1)
    more = {"encoder": folder / "start.safetensors", "cached_views": 2, "knn_every": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return pretrain(
            str(picture_files), method, Hierarchy(levels=(24, 6), start_epoch=0), out=folder / "run", **SHORT | more
        ).folder


@pytest.fixture(params=["cnn", "vit", "adapted"])
def run(request: pytest.FixtureRequest, trained_runs: dict[str, Path]) -> Path:
    return trained_runs["hirl"] if request.param == "cnn" else request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(scope="session")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run as ONNX; each is written once, since that takes seconds."""
    written: dict[tuple[Path, bool], Path] = {}

    def write(run: Path, *, levels: bool) -> Path:
        if (run, levels) not in written:
            out = tmp_path_factory.mktemp("onnx") / "encoder.onnx"
            written[run, levels] = export_encoder(run, "onnx", out, levels=levels).out
        return written[run, levels]

    return write
