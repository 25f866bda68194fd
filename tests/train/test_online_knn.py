"""The KNN of a running training: on the val split where there is one, and always under its right name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hirl import Run, pretrain
from hirl.cli.main import main
from hirl.data import Shapes, open_images
from hirl.methods import SimSiam
from hirl.train.online_knn import OnlineKnn, open_val

OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 16, "accelerator": "cpu", "devices": 1, "knn_every": 1}


def train(data: Any, out: Path, **changes: Any) -> Run:
    method = SimSiam(backbone="resnet10t", backbone_args={"channels": [8, 8, 16, 16]}, dim=16, predictor_hidden=8)
    return pretrain(data, method, None, out=out, **(OPTIONS | changes))


def arrays(part: str, share: float) -> dict[str, Any]:
    """40 noisy images of two classes; `share` of them of the first."""
    labels = (np.arange(40) >= share * 40).astype(np.int64)
    pixels = np.random.default_rng(len(part)).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    return {f"{part}_images": pixels, f"{part}_labels": labels}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    np.savez(tmp_path / "parts.npz", **arrays("train", 0.5), **arrays("val", 0.75))
    return tmp_path / "parts.npz"


def figures(run: Run) -> dict[str, float]:
    names = ("knn", "majority")
    return {name: value for line in run.metrics() for name, value in line.items() if name.startswith(names)}


def test_the_val_part_is_used_where_there_is_one(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(str(parts), tmp_path / "runs" / "run")
    found = figures(run)
    assert set(found) == {"knn_val_level_0", "majority_val_level_0"}
    assert found["majority_val_level_0"] == 0.75
    log = run.log_file.read_text()
    assert f"KNN on val images: level 0 {found['knn_val_level_0']:.1%} (majority class 75.0%)" in log
    capsys.readouterr()
    assert main(["runs", str(tmp_path / "runs")]) == 0
    assert f"{found['knn_val_level_0']:.1%}" in capsys.readouterr().out


def test_without_one_a_fifth_of_the_training_images_is_named_as_such(tmp_path: Path) -> None:
    run = train(Shapes(images=60, size=16, cache=False), tmp_path / "run")
    levels = range(3)
    expected = {f"{name}_train_level_{level}" for name in ("knn", "majority") for level in levels}
    assert set(figures(run)) == expected
    assert "KNN on a fifth of the training images: level 0" in run.log_file.read_text()


def test_what_the_run_is_trained_on_is_not_its_val_part(parts: Path, tmp_path: Path) -> None:
    train_part, val_part = open_images(parts), open_images(parts, split="val")
    found = open_val(parts, None, train_part)
    assert found is not None
    assert found.name == val_part.name
    assert open_val(parts, "train", train_part) is not None
    assert open_val(parts, "val", val_part) is None
    assert open_val(train_part, None, train_part) is None
    np.savez(tmp_path / "only.npz", **arrays("val", 0.5))
    only = open_images(tmp_path / "only.npz")
    assert open_val(tmp_path / "only.npz", None, only) is None


def test_a_broken_val_split_is_not_taken_for_none(parts: Path, tmp_path: Path) -> None:
    content = dict(np.load(parts))
    broken = tmp_path / "broken.npz"
    np.savez(broken, **content | {"val_images": content["val_images"].astype(np.float64)})
    with pytest.raises(ValueError, match=r"broken\.npz/val are of type float64"):
        open_val(broken, None, open_images(broken))


def test_training_does_not_depend_on_it(parts: Path, tmp_path: Path) -> None:
    weights = [train(str(parts), tmp_path / str(every), knn_every=every).encoder_file.read_bytes() for every in (0, 1)]
    assert weights[0] == weights[1]


def test_queries_are_not_in_the_gallery(tmp_path: Path) -> None:
    """Each image is a class of its own, so only the image itself could name it."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    assert figures(train((pixels, np.arange(40)), tmp_path / "run"))["knn_train_level_0"] == 0


def test_it_reads_images_as_training_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of several sizes, which are read from their files; by default in processes of their own."""
    for part, name in product(("train", "val"), "ab"):
        (tmp_path / "data" / part / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (16 + number % 2, 16)).save(tmp_path / "data" / part / name / f"{number}.png")
    made: list[OnlineKnn] = []

    class Kept(OnlineKnn):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("hirl.train.online_knn.OnlineKnn", Kept)
    train(str(tmp_path / "data"), tmp_path / "run", workers=0)
    (knn,) = made
    assert knn.val_loader is not None
    assert (knn.loader.workers, knn.val_loader.workers) == (0, 0)
