"""A comparison reports figures of its own protocol, whatever else was evaluated in its runs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hirl.cli.main import main

RECIPE: dict[str, Any] = {
    "method": {
        "class_path": "hirl.methods.MoCoV2",
        "init_args": {
            "backbone": "resnet10t",
            "backbone_args": {"channels": [8, 8, 16, 16]},
            "dim": 16,
            "queue_length": 80,
            "bn_splits": 2,
        },
    },
    "hierarchy": {"levels": [12, 4], "negatives": 5, "start_epoch": 1},
    "epochs": 2,
    "batch_size": 80,
    "accelerator": "cpu",
    "knn_every": 0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of labelled images, a recipe and a finished comparison."""
    folder = tmp_path_factory.mktemp("compared")
    rng = np.random.default_rng(0)
    for part in ("train", "val", "other"):
        labels = rng.integers(0, 4, 240)
        images = rng.integers(0, 256, (240, 16, 16, 3)) // 2 + 20 * labels[:, None, None, None]
        np.savez(folder / f"{part}.npz", images=images.astype(np.uint8), labels=labels)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    assert compare(folder) == 0
    return folder


def compare(folder: Path) -> int:
    files = [str(folder / "train.npz"), str(folder / "tiny.yaml"), "--test_data", str(folder / "val.npz")]
    return main(["compare", *files, "--tasks", "knn", "--accelerator", "cpu", "--out", str(folder / "out")])


def figures(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "figures.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "options", [["--knn.ks", "1", "--test_data", "{val}"], ["--test_data", "{other}"]], ids=["arguments", "test images"]
)
def test_another_protocol_is_not_taken_for_that_of_the_comparison(options: list[str], folder: Path) -> None:
    before = figures(folder)
    run = folder / "out" / next(path.name for path in (folder / "out").iterdir() if path.name.endswith("-base-0"))
    files = {part: str(folder / f"{part}.npz") for part in ("val", "other")}
    assert main(["evaluate", str(run), "knn", "--device", "cpu", *(option.format(**files) for option in options)]) == 0
    assert compare(folder) == 0
    assert figures(folder) == before
