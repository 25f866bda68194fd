"""`hirl evaluate … detection`, from every kind of encoder, alone, by two processes and in a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import hirl
from hirl.cli.main import main
from hirl.evals import Detection, Kind
from hirl.evals.detection import detector_training as training
from hirl.evals.detection.detector_training import Training
from hirl.evals.training import resumable
from hirl.run import Run
from hirl.terminal.figures import kind_of

from ...forked import Forked, as_torchrun, wait_for_all

Coco = Callable[..., Path]
SMALL = Detection(epochs=2, batch_size=2, short_sides=(48, 56), regions=8, proposals=10, channels=8, hidden=16, lr=0.01)
OPTIONS = ["epochs=2", "batch_size=2", "short_sides=[48,56]", "regions=8", "proposals=10", "channels=8", "hidden=16"]
NARROW: dict[str, Any] = {"channels": [8, 8, 16, 16]}
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


def test_from_a_run(coco: Coco, runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    """By one command, which writes figures, predictions and a page into the run's folder."""
    folder = coco(images=4)
    options = [f"--detection.{option}" for option in OPTIONS]
    run = runs["hirl"].folder
    assert main(["evaluate", str(run), "detection", "--data", str(folder), *options, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "detection: Mask R-CNN C4 on 4 images, sgd, lr 0.0025" in shown
    assert "4 steps (2 epochs" in shown
    assert "predictions.html" in shown
    (file,) = (run / "results").glob("*.json")
    stored = json.loads(file.read_text())
    assert stored["protocol"]["task"] == "detection"
    assert stored["protocol"]["arguments"]["regions"] == 8
    assert {"box AP", "box AP50", "box AP75", "mask AP"} <= stored["headline"].keys()
    assert stored["kinds"]["headline"]["box AP"] == "average precision"
    assert stored["chosen"]["steps"] == 4
    beside = file.with_suffix("")
    predictions = json.loads((beside / "predictions.json").read_text())
    assert {one["image_id"] for one in predictions} <= {1, 2, 3, 4}
    page = (beside / "predictions.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 8  # truth and predictions of four images
    assert "4.png: 2 objects" in page
    assert "http" not in page  # nothing is fetched


@pytest.mark.parametrize(
    ("subject", "options"),
    [
        ("random:resnet10t", {"backbone_args": NARROW}),
        ("random:vit_tiny_patch16_224", {"backbone_args": VIT}),
        ("random:torchvision:resnet18", {}),
        ("weights.pth", {"backbone": "resnet10t", "backbone_args": NARROW}),
    ],
)
def test_from_other_encoders(
    subject: str, options: dict[str, Any], coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subject == "weights.pth":
        torch.save(hirl.encoders.backbones.make_backbone("resnet10t", **NARROW).state_dict(), tmp_path / subject)
        monkeypatch.chdir(tmp_path)
    task = replace(SMALL, segment=False, epochs=1)
    result = hirl.evaluate(subject, task, data=coco(), device="cpu", quiet=True, **options)["detection"]
    assert list(result.headline) == ["box AP", "box AP50", "box AP75"]
    assert {kind_of(value) for value in result.headline.values()} == {Kind.AVERAGE_PRECISION}
    totals, *classes = result.rows
    assert list(totals) == ["of", "AP", "AP50", "AP75", "AP small", "AP medium", "AP large"]
    assert [row["class"] for row in classes] == ["box", "tent"]
    assert [row["objects"] for row in classes] == [2, 2]


def test_a_module_as_it_is(coco: Coco) -> None:
    encoder = hirl.encoders.backbones.make_backbone("vit_tiny_patch16_224", **VIT)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    hirl.evaluate(encoder, SMALL, data=coco(), image_size=32, device="cpu", quiet=True)
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])  # a copy is trained


def test_images_without_objects_may_be_left_out_of_training(coco: Coco, capsys: pytest.CaptureFixture[str]) -> None:
    """They stay in the test split; an image with a crowd alone has no object to learn from."""

    def crowd(document: Any) -> None:
        for one in document["annotations"]:
            if one["image_id"] == 3:
                one["iscrowd"] = 1

    folder = coco(crowd, images=4)  # the second has no objects
    for keep, count in ((True, 4), (False, 2)):
        task = replace(SMALL, segment=False, epochs=1, keep_empty=keep)
        hirl.evaluate("random:resnet10t", task, data=folder, backbone_args=NARROW, device="cpu")
        assert f"Faster R-CNN C4 on {count} images" in capsys.readouterr().out


def test_pascal_voc(tmp_path: Path) -> None:
    from ...data.test_annotations import voc

    voc(tmp_path, ["a", "b", "c"])
    (tmp_path / "ImageSets/Main/train.txt").write_text("a\nb\n")
    (tmp_path / "ImageSets/Main/val.txt").write_text("c\n")
    task = replace(SMALL, segment=False, epochs=1)
    result = hirl.evaluate("random:resnet10t", task, data=tmp_path, backbone_args=NARROW, device="cpu", quiet=True)
    assert [row.get("class") for row in result["detection"].rows] == [None, "tent"]  # the box is difficult
    with pytest.raises(ValueError, match="has boxes but no masks"):
        hirl.evaluate("random:resnet10t", SMALL, data=tmp_path, backbone_args=NARROW, device="cpu", quiet=True)


def test_the_same_command_continues(
    coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that ended at step 3 of 4 takes one more, and its figures are those of one that was left alone."""
    folder = coco(images=4)
    options: dict[str, Any] = {"data": folder, "backbone_args": NARROW, "device": "cpu", "quiet": True}
    alone = hirl.evaluate("random:resnet10t", SMALL, **options)["detection"]
    monkeypatch.setattr(resumable, "SAVE_EVERY", 0.0)
    step = Training._step
    taken: list[int] = []

    def counted(self: Training, module: Any, optimiser: Any, number: int, pieces: Any) -> torch.Tensor:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(number)
        return step(self, module, optimiser, number, pieces)

    monkeypatch.setattr(Training, "_step", counted)
    with pytest.raises(KeyboardInterrupt):
        hirl.evaluate("random:resnet10t", SMALL, out=tmp_path / "out", **options | {"quiet": False})
    assert "detection: step 3 of 4, loss " in capsys.readouterr().out
    taken.clear()
    again = hirl.evaluate("random:resnet10t", SMALL, out=tmp_path / "out", **options)["detection"]
    assert taken == [3]
    assert again.rows == alone.rows
    taken.clear()
    hirl.evaluate("random:resnet10t", SMALL, out=tmp_path / "out", reuse=True, **options)
    hirl.evaluate("random:resnet10t", SMALL, out=tmp_path / "out", **options)
    assert not taken  # it is trained already
    hirl.evaluate("random:resnet10t", replace(SMALL, epochs=1), out=tmp_path / "out", **options)
    assert taken == [0, 1]  # another protocol has a folder of its own
    assert len(list((tmp_path / "out").glob("detection-*.json"))) == 2


def test_faults_are_printed_and_listed(coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = coco(lambda document: document["annotations"][0].update(bbox=[5, 5, 0, 9]))
    options: dict[str, Any] = {"data": folder, "backbone_args": NARROW, "device": "cpu"}
    hirl.evaluate("random:resnet10t", replace(SMALL, epochs=1), out=tmp_path / "out", **options)
    shown = capsys.readouterr().out
    assert "1 faults in" in shown
    assert "1 × box without area, e.g. " in shown
    (listed,) = (tmp_path / "out").rglob("dropped.txt")
    assert "annotation id 1 has the box [5, 5, 0, 9]" in listed.read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 50}, "detection: batch_size is 50, but must be from 1 to 2"),
        ({"regions": 0}, "detection: regions is 0, but must be at least 1"),
        ({"precision": "16-mixed"}, "detection: precision 16-mixed needs a GPU"),
        ({"accumulate": 3}, "detection: a batch of 2 images cannot be cut into 3 equal parts"),
    ],
)
def test_mistakes_are_one_sentence(change: dict[str, Any], message: str, coco: Coco) -> None:
    options: dict[str, Any] = {"data": coco(), "backbone_args": NARROW, "device": "cpu", "quiet": True}
    with pytest.raises(ValueError, match=r"^detection: ") as error:
        hirl.evaluate("random:resnet10t", replace(SMALL, **change), **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_data_that_has_no_boxes_is_refused(coco: Coco, picture_files: Path) -> None:
    options: dict[str, Any] = {"backbone_args": NARROW, "device": "cpu", "quiet": True}
    with pytest.raises(ValueError, match="has no annotations of its split 'train'"):
        hirl.evaluate("random:resnet10t", SMALL, data=picture_files.parent, **options)
    with pytest.raises(ValueError, match="a Tensor has no boxes"):
        hirl.evaluate("random:resnet10t", SMALL, data=torch.zeros(4, 3, 8, 8), **options)
    with pytest.raises(ValueError, match="is one part alone: name the annotations to test on with --test_data"):
        hirl.evaluate("random:resnet10t", SMALL, data=coco() / "annotations/instances_train.json", **options)


def test_under_torchrun(coco: Coco, tmp_path: Path) -> None:
    """Two processes, as torchrun starts them: one result, one page, one set of lines."""
    folder = coco(images=4)
    options = [f"--detection.{option}" for option in OPTIONS]
    options += ["--detection.segment", "false", "--backbone_args", json.dumps(NARROW), "--out", str(tmp_path / "out")]
    options += ["--data", str(folder), "--device", "cpu"]
    line = ("hirl.cli.main", "evaluate", "random:resnet10t", "detection", *options)
    processes = [Forked(*line, env=variables | {"COLUMNS": "200"}) for variables in as_torchrun(2)]
    wait_for_all(processes)
    assert "".join(process.output for process in processes).count("detection: Faster R-CNN C4") == 1
    (file,) = (tmp_path / "out").glob("*.json")
    assert json.loads(file.read_text())["headline"]["box AP"] >= 0


def test_arms_are_compared(coco: Coco, picture_files: Path, tmp_path: Path) -> None:
    """Both arms are pretrained on pictures and evaluated on boxes, side by side in one table."""
    recipe = {
        "method": {
            "class_path": "hirl.methods.MoCoV2",
            "init_args": {
                "backbone": "resnet10t",
                "backbone_args": NARROW,
                "dim": 16,
                "queue_length": 96,
                "bn_splits": 2,
            },
        },
        "hierarchy": {"levels": [12, 4], "negatives": 5, "start_epoch": 1},
        "epochs": 2,
        "batch_size": 48,
        "knn_every": 0,
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    folder = coco(images=4)
    options = [f"--detection.{option}" for option in OPTIONS]
    line = ["compare", str(picture_files), str(tmp_path / "tiny.yaml"), "--tasks", "detection", "--accelerator", "cpu"]
    assert main([*line, "--evaluation_data", str(folder), "--out", str(tmp_path / "out"), *options]) == 0
    table = (tmp_path / "out" / "tables.md").read_text()
    assert "| MoCoV2 | detection, box AP |" in table
    assert "| MoCoV2 | detection, mask AP50 |" in table


def test_statistics_of_batch_norm_are_settled(coco: Coco, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the end they are means over many batches, each counting the same."""
    received: list[float] = []
    losses = Training.losses

    def watched(self: Training, module: Any, piece: Any, *place: Any) -> Any:
        if not torch.is_grad_enabled():
            received.append(self.network.heads.norm.momentum)  # type: ignore[arg-type, union-attr]
        return losses(self, module, piece, *place)

    monkeypatch.setattr(Training, "losses", watched)
    monkeypatch.setattr(training, "PRECISE_STEPS", 3)
    hirl.evaluate("random:resnet10t", SMALL, data=coco(images=4), backbone_args=NARROW, device="cpu", quiet=True)
    assert received == [1, 1 / 2, 1 / 3]
