"""A full disk: every file of a run that cannot be written says so in one sentence, and the old file stays."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hirl.encoders.encoder_file import EncoderMetadata, save_encoder
from hirl.features import feature_cache
from hirl.features.feature_cache import FeatureCache, ImageFeatures
from hirl.hierarchy.tree import PrototypeTree
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.runs.results import write_result

LIMIT = 50_000  # bytes per file: what lies beyond fails as on a full disk


@pytest.fixture
def full() -> Iterator[None]:
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, kept[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, kept)


def save_features(folder: Path, count: int) -> None:
    features = ImageFeatures(torch.zeros(count, 1), torch.ones(count, dtype=torch.bool))
    FeatureCache(folder).get_or_compute("features", {"images": 0}, lambda _: features)


def save_large_features(folder: Path, count: int) -> None:
    def compute(allocate: feature_cache.Allocate) -> ImageFeatures:
        return ImageFeatures(allocate((count, 1)).fill_(0), torch.ones(count, dtype=torch.bool))

    FeatureCache(folder).get_or_compute("features", {"images": 0}, compute)


def save_tree(folder: Path, count: int) -> None:
    leaves = torch.zeros(count, dtype=torch.int64)
    PrototypeTree(prototypes=(torch.ones(1, 1),), parents=(), leaves=leaves).save(folder / "tree.safetensors")


SAVES: dict[str, Callable[[Path, int], Any]] = {
    "last.ckpt": lambda folder, count: save_checkpoint(folder / "last.ckpt", {"weights": [torch.zeros(count)]}),
    "encoder.safetensors": lambda folder, count: save_encoder(
        folder / "encoder.safetensors", nn.Linear(count, 1), EncoderMetadata("resnet18", {}, 32, (0.5,), (0.5,))
    ),
    "tree.safetensors": save_tree,
    "features-": save_features,
    ".npy": save_large_features,
    "knn-": lambda folder, count: write_result(folder, {"task": "knn"}, {"rows": [0] * count}),
    "metrics.jsonl": lambda folder, count: Run(folder).report({"step": 0, "epoch": 0, "figure": [0] * count}),
}


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("name", SAVES)
def test_it_is_named_with_what_to_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "LARGE", 1000)
    with pytest.raises(
        OSError, match=r"^cannot write '.*': the disk or your quota is full \(.* MB are free.*\); make"
    ) as error:
        SAVES[name](tmp_path, 100_000)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
    assert all(file.name == "metrics.jsonl" for file in tmp_path.iterdir()), "a part of a file is still there"


@pytest.mark.usefixtures("full")
def test_the_last_checkpoint_stays(tmp_path: Path) -> None:
    SAVES["last.ckpt"](tmp_path, 10)
    with pytest.raises(OSError, match=r"0\.4 MB are needed\).*; the last good checkpoint there is untouched"):
        SAVES["last.ckpt"](tmp_path, 100_000)
    assert len(load_checkpoint(tmp_path / "last.ckpt")["weights"][0]) == 10
