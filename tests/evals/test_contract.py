"""What an evaluation may need: parts, labels, data of its own, dense feature maps, and figures of any kind."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import hirl
from hirl.data.sources.image_set import ImageSet
from hirl.encoders.backbones import feature_maps
from hirl.evals import EVALUATIONS, KNN, Clustering, Evaluation, Figure, Kind, Needs, Result, Subject
from hirl.evals.base import Part
from hirl.features.image_request import ImageRequest
from hirl.run import Run
from hirl.runs.results import list_results

NARROW = {"channels": [8, 8, 16, 16]}
VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}


class BoxedImages(ImageSet):
    """Blank images, each with one box: what a data set for detection looks like."""

    def __init__(self, boxes: Tensor, fingerprint: str | None) -> None:
        super().__init__(name="boxes", channels=3)
        self.fingerprint = fingerprint
        self.boxes = boxes  # (N, 4) x, y, width, height

    def __len__(self) -> int:
        return len(self.boxes)

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:  # noqa: ARG002
        image = torch.zeros(3, 16, 16, dtype=torch.uint8)
        x, y, width, height = self.boxes[index].tolist()
        image[:, y : y + height, x : x + width] = 255
        return image


@dataclass(frozen=True)
class Boxes(Evaluation):
    """How much stronger the maps respond within the box: a stand-in for detection, in every respect but the figure."""

    name: ClassVar[str] = "boxes"
    images: int = 6
    fingerprint: str | None = "six boxes"

    @property
    def needs(self) -> Needs:
        return Needs(train=False, feature_maps=True)

    def open_parts(self, request: ImageRequest) -> dict[Part, ImageSet]:
        assert request.data == "elsewhere"
        corners = torch.arange(self.images) % 3 * 4
        boxes = torch.stack([corners, corners, corners * 0 + 8, corners * 0 + 8], dim=1)
        return {"test": BoxedImages(boxes, self.fingerprint)}

    def run(self, subject: Subject) -> Result:
        images = subject.test
        assert isinstance(images, BoxedImages)
        pictures = torch.stack([images.read(index) for index in range(len(images))]) / 255
        last = feature_maps(subject.encoder, pictures)[-1]
        precision = Figure(float(last.isfinite().float().mean()), Kind.AVERAGE_PRECISION)
        rows: list[Any] = [{"images": len(images), "stride": 16 // last.shape[-1], "AP": precision}]
        return Result({"AP": precision, "boxes": Figure(len(images), Kind.COUNT)}, rows)


@pytest.mark.parametrize(
    ("backbone", "args", "stride"), [("random:resnet10t", NARROW, "16"), ("random:vit_tiny_patch16_224", VIT, "4")]
)
def test_an_evaluation_may_bring_data_and_figures_of_its_own(
    backbone: str, args: dict[str, Any], stride: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"data": "elsewhere", "backbone_args": args, "image_size": 16, "out": tmp_path}
    first = hirl.evaluate(backbone, Boxes(), device="cpu", **options)["boxes"]
    shown = capsys.readouterr().out
    assert shown.splitlines()[4].split() == ["6", stride, "100.0"]
    assert "boxes: AP 100.0; boxes 6" in shown
    assert hirl.evaluate(backbone, Boxes(), device="cpu", reuse=True, **options)["boxes"] == first
    assert "stored earlier" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 1


def test_an_evaluation_may_keep_files_beside_its_result(tmp_path: Path) -> None:
    folders: list[Path | None] = []

    @dataclass(frozen=True)
    class Long(Boxes):
        def run(self, subject: Subject) -> Result:
            folders.append(subject.folder)
            if subject.folder is not None:
                subject.folder.mkdir(parents=True, exist_ok=True)
                (subject.folder / "predictions.json").write_text("{}")
            return super().run(subject)

    options: dict[str, Any] = {"data": "elsewhere", "backbone_args": NARROW, "image_size": 16, "quiet": True}
    hirl.evaluate("random:resnet10t", Long(), out=tmp_path, **options)
    hirl.evaluate("random:resnet10t", Long(), out=tmp_path, seed=1, **options)
    hirl.evaluate("random:resnet10t", Long(), **options)
    first, second, nowhere = folders
    assert nowhere is None
    assert first != second
    assert {file.stem for file in list_results(tmp_path)} == {folder.name for folder in (first, second) if folder}


def test_images_of_unknown_content_are_never_matched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"data": "elsewhere", "backbone_args": NARROW, "image_size": 16, "out": tmp_path}
    for _ in range(2):
        hirl.evaluate("random:resnet10t", Boxes(fingerprint=None), device="cpu", reuse=True, **options)
    assert "stored earlier" not in capsys.readouterr().out


def test_what_an_evaluation_needs_is_checked_before_the_first_one_runs(
    picture_files: Path, monkeypatch: pytest.MonkeyPatch, runs: dict[str, Run], tmp_path: Path
) -> None:
    def never(_self: KNN, _subject: Subject) -> Result:
        raise AssertionError("an evaluation ran")

    monkeypatch.setattr(KNN, "run", never)

    @dataclass(frozen=True)
    class Dense(Boxes):
        def open_parts(self, request: ImageRequest) -> dict[Part, ImageSet]:
            return {"test": request.test(held_out=False)}

    with pytest.raises(ValueError, match="boxes: backbone ResNet has no feature maps: choose a timm network"):
        hirl.evaluate(
            "random:torchvision:resnet18", KNN(ks=(5,)), Dense(), data=picture_files, device="cpu", quiet=True
        )
    images = np.zeros((20, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "unlabelled.npz", images=images)
    with pytest.raises(ValueError, match=r"knn: .* has no labels, but this evaluation needs them"):
        runs["hirl"].evaluate(KNN(ks=(5,)), Clustering(), test_data=tmp_path / "unlabelled.npz", quiet=True)


def test_without_a_training_part_images_without_parts_will_do(runs: dict[str, Run], tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "all.npz", images=images, labels=np.arange(40) % 4)
    options: dict[str, Any] = {"data": tmp_path / "all.npz", "device": "cpu", "quiet": True}
    result = runs["hirl"].evaluate(Clustering(restarts=1), **options)["clustering"]
    assert [row["clusters"] for row in result.rows] == [4]
    with pytest.raises(ValueError, match="needs separate test images: name them"):
        runs["hirl"].evaluate(Clustering(part="train"), KNN(ks=(5,)), **options)


def test_images_that_are_learnt_from_and_tested_on_are_counted(tmp_path: Path) -> None:
    for split, numbers in (("train", range(4)), ("val", range(4, 6))):
        for number in numbers:
            file = tmp_path / split / f"class {number % 2}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 0, 0)).save(file)

    def open_parts(**named: Any) -> dict[Part, ImageSet]:
        return KNN(ks=(1,)).open_parts(ImageRequest(str(tmp_path), **named))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {part: len(images) for part, images in open_parts().items()} == {"train": 4, "test": 2}
        open_parts(test_data=str(tmp_path), test_split="val")
    with pytest.warns(UserWarning, match="4 of the 4 test images are also training images"):
        open_parts(test_split="train")
    with pytest.warns(UserWarning, match="2 of the 2 test images are also training images"):
        open_parts(split="val", test_data=str(tmp_path))


def test_a_part_that_was_not_asked_for_is_not_there() -> None:
    @dataclass(frozen=True)
    class Forgetful(Boxes):
        def run(self, subject: Subject) -> Result:
            return Result({"images": float(len(subject.train))}, [])

    options: dict[str, Any] = {"data": "elsewhere", "backbone_args": NARROW, "image_size": 16}
    with pytest.raises(ValueError, match="boxes: there are no training images"):
        hirl.evaluate("random:resnet10t", Forgetful(), quiet=True, **options)


@pytest.mark.parametrize("name", EVALUATIONS)
def test_what_a_task_needs_is_asked_for_when_it_is_missing(name: str, tmp_path: Path) -> None:
    task = EVALUATIONS[name]()
    images = np.zeros((20, 16, 16, 3), np.uint8)
    unlabelled, one_part = tmp_path / "unlabelled.npz", tmp_path / "one_part.npz"
    np.savez(unlabelled, train_images=images, val_images=images)
    np.savez(one_part, images=images, labels=np.arange(20) % 4)
    own_data = type(task).open_parts is not Evaluation.open_parts
    refused: dict[Path, str] = {}
    if task.needs.labels:
        refused[unlabelled] = (
            rf"^{name}: .*unlabelled.npz/\w+ has no labels, but this evaluation needs them: name labelled"
        )
    elif own_data:  # such as images with boxes
        refused[unlabelled] = r"unlabelled.npz' has no .*: name "
    if task.needs.train and not own_data:
        refused[one_part] = "one_part.npz has no splits .* needs separate test images: name them with --test_data"
    for data, message in refused.items():
        with pytest.raises(ValueError, match=message):
            hirl.evaluate("random:resnet10t", task, data=data, backbone_args=NARROW, device="cpu", quiet=True)


def test_an_evaluation_may_do_without_labels(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Width(Evaluation):
        name: ClassVar[str] = "width"

        def run(self, subject: Subject) -> Result:
            return Result({"width": Figure(subject.features("test").shape[1], Kind.COUNT)}, [])

    images = np.zeros((20, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "unlabelled.npz", train_images=images, val_images=images)
    options: dict[str, Any] = {"backbone_args": NARROW, "device": "cpu", "quiet": True}
    found = hirl.evaluate("random:resnet10t", Width(), data=tmp_path / "unlabelled.npz", **options)
    assert found["width"].headline["width"] == 16
