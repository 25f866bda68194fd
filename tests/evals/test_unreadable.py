"""Images that cannot be read count in no evaluation: the figures are those of the data without them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor, nn

import hirl
from hirl.evals import KNN, Clustering, FineTune, Linear, TreeAgreement

NARROW = {"channels": [8, 8, 16, 16]}
FEATURE_TASKS = (KNN(ks=(5, 10)), Clustering(), TreeAgreement(levels=(6, 2)), Linear(epochs=3, rates=(0.1, 1.0)))
TRAINED_TASKS = (FineTune(epochs=1, batch_size=8), Linear(setting="MoCoV2", epochs=1, batch_size=8))


class Colours(nn.Module):
    """The mean colour of each quarter: an encoder of no weights."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


@pytest.fixture(params=[16, 140], ids=["in memory", "files"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Path]:
    """Two folders of labelled images in two parts: one with broken files, the other without these files."""
    random = np.random.default_rng(0)
    size = request.param
    for part, count in (("train", 12), ("val", 9)):
        for place, name in enumerate(("cat", "dog", "owl")):
            (tmp_path / "broken" / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 156, (size, size, 3)) + 60 * np.eye(3, dtype=np.int64)[place]
                path = tmp_path / "broken" / part / name / f"{number:02d}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    shutil.copytree(tmp_path / "broken", tmp_path / "without")
    # The last of a class: its stand-in would be of another class.
    for name in ("train/cat/11.png", "train/dog/00.png", "val/cat/08.png", "val/owl/08.png"):
        (tmp_path / "broken" / name).write_bytes(b"broken")
        (tmp_path / "without" / name).unlink()
    return {name: tmp_path / name for name in ("broken", "without")}


def rows(result: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in result.rows]


def test_figures_are_those_of_the_readable_images(folders: dict[str, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"image_size": 16, "device": "cpu", "workers": 0, "quiet": True}
    expected = hirl.evaluate(Colours(), *FEATURE_TASKS, data=str(folders["without"]), **options)
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match="could not be read"):
            found = hirl.evaluate(
                Colours(), *FEATURE_TASKS, data=str(folders["broken"]), cache=tmp_path / "cache", **options
            )
        for task, result in expected.items():
            assert rows(found[task]) == rows(result), task


@pytest.mark.filterwarnings("ignore:.*could not be read")
def test_an_unreadable_test_image_is_not_predicted(folders: dict[str, Path]) -> None:
    shutil.rmtree(folders["broken"] / "train")
    shutil.copytree(folders["without"] / "train", folders["broken"] / "train")
    options: dict[str, Any] = {"image_size": 16, "device": "cpu", "workers": 0, "quiet": True, "backbone_args": NARROW}
    for task in TRAINED_TASKS:
        found, expected = (
            hirl.evaluate("random:resnet10t", task, data=str(folders[name]), **options)[task.name]
            for name in ("broken", "without")
        )
        assert rows(found) == rows(expected)


@pytest.mark.filterwarnings("ignore:.*could not be read")
def test_the_share_of_the_largest_class_stands_beside_every_accuracy(folders: dict[str, Path]) -> None:
    options: dict[str, Any] = {"image_size": 16, "device": "cpu", "workers": 0, "quiet": True, "backbone_args": NARROW}
    tasks = (FEATURE_TASKS[0], FEATURE_TASKS[1], FEATURE_TASKS[3], TRAINED_TASKS[0])
    for result in hirl.evaluate("random:resnet10t", *tasks, data=str(folders["broken"]), **options).values():
        assert all(row["majority"] == pytest.approx(9 / 25) for row in result.rows)  # 8, 9 and 8 images can be read
