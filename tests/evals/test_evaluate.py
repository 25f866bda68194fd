"""`hirl.evaluate`: any encoder on the same protocol, stored results, and weights that fit or are refused."""

from __future__ import annotations

import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

import hirl
from hirl.data import open_images
from hirl.data.views.normalisation import IMAGENET_MEAN, IMAGENET_STD
from hirl.encoders.backbones import make_backbone
from hirl.encoders.encoder_file import save_encoder
from hirl.encoders.weights_source import ImageFormat
from hirl.evals import EVALUATIONS, KNN, Clustering, TreeAgreement
from hirl.evals.base import Evaluation, Needs, Result, Subject
from hirl.features import extractor
from hirl.features.open_encoder import Encoder, open_encoder
from hirl.metrics.knn import knn_accuracy
from hirl.run import Run
from hirl.runs.results import list_results

QUICK = KNN(ks=(5, 10))
NARROW = {"channels": [8, 8, 16, 16]}


class Colours(nn.Module):
    """The mean colour of each quarter: an encoder of no weights."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


def stored(run: Run, task: str) -> list[dict[str, Any]]:
    """The run's stored results of a task, oldest first."""
    return [result for file, result in list_results(run.results_folder).items() if file.name.startswith(f"{task}-")]


def test_a_run_is_evaluated_at_every_label_level_and_stored(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    results = run.evaluate(QUICK, Clustering(restarts=1), TreeAgreement(sample=100), seed=3, device="cpu")
    assert list(results) == ["knn", "clustering", "tree"]
    assert list(results["knn"].headline) == ["48 classes", "12 classes", "4 classes"]
    (found,) = stored(run, "knn")
    assert found["headline"] == results["knn"].headline
    assert found["rows"] == results["knn"].rows
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["encoder"]["backbone"] == "resnet10t"
    protocol = found["protocol"]
    assert protocol["arguments"] == {"ks": [5, 10], "temperature": 0.07}
    assert protocol["seed"] == 3
    assert protocol["encoder"]["method"] == "MoCoV2"
    assert re.fullmatch(r"[0-9a-f]{64}", protocol["encoder"]["sha256"])
    assert protocol["data"]["train"]["count"] == protocol["data"]["test"]["count"] == 144
    assert protocol["data"]["test"]["classes"] == [48, 12, 4]
    assert protocol["images"]["size"] == 16
    tree = results["tree"]
    assert "AMI, 48 classes, run's own" in tree.headline
    assert {row["from"] for row in tree.rows if "from" in row} == {"pooled features", "z0", "z1", "z2"}


def test_images_are_resized_as_the_methods_original_does(runs: dict[str, Run]) -> None:
    """Recorded in the protocol, so that no result under another one is reused."""
    run = runs["base"]
    config = run.config_file.read_text().partition("\n")[2]  # without its checksum
    for path, resized in (
        ("hirl.methods.MoCoV2", "bilinear"),
        ("hirl.methods.dino.DINO", "bicubic"),
        ("elsewhere.DINO", "bilinear"),  # a class that may not be imported, of the same name
    ):
        run.config_file.write_text(config.replace("hirl.methods.moco_v2.MoCoV2", path))
        run.evaluate(QUICK, device="cpu", quiet=True)
        assert stored(run, "knn")[-1]["protocol"]["images"]["interpolation"] == resized
    run.config_file.write_text(config)
    run.evaluate(QUICK, device="cpu", quiet=True, interpolation="bicubic", reuse=True)
    protocol = stored(run, "knn")[-1]["protocol"]
    assert (protocol["encoder"]["method"], protocol["images"]["interpolation"]) == ("MoCoV2", "bicubic")
    with pytest.raises(ValueError, match="interpolation is 'nearest', but must be 'bilinear' or 'bicubic'"):
        run.evaluate(QUICK, device="cpu", quiet=True, interpolation="nearest")


def test_a_result_for_another_crop_is_not_reused(picture_files: Path, tmp_path: Path) -> None:
    """The same weights may be cropped differently, depending on where they were opened from."""
    network, measured = open_encoder(Colours()), []
    for crop in (0.95, 0.5, 0.5):
        encoder = replace(network, format=ImageFormat(16, IMAGENET_MEAN, IMAGENET_STD, crop=crop))
        options: dict[str, Any] = {
            "data": picture_files,
            "out": tmp_path,
            "device": "cpu",
            "quiet": True,
            "reuse": True,
        }
        measured.append(hirl.evaluate(encoder, QUICK, **options)["knn"])
    crops = {found["protocol"]["images"]["crop"] for found in list_results(tmp_path).values()}
    assert crops == {0.95, 0.5}
    assert measured[0].rows != measured[1].rows
    assert measured[1] == measured[2]


def test_both_arms_have_a_tree_to_compare(runs: dict[str, Run]) -> None:
    (found,) = runs["base"].evaluate(TreeAgreement(levels=(24, 6)), device="cpu", quiet=True).values()
    assert found.chosen["levels"] == [24, 6]
    assert {row["tree"] for row in found.rows if "tree" in row} == {"tree", "Ward", "K-means"}
    assert {row["from"] for row in found.rows if "from" in row} == {"pooled features", "z0"}


def test_heads_that_cannot_be_loaded_are_reported_before_any_pass(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a method of one's own that is not named."""

    def refused(*_: object, **__: object) -> None:
        raise ValueError("name the class yourself")

    def passed(*_: object, **__: object) -> None:
        raise AssertionError("images were passed through the network")

    monkeypatch.setattr(Encoder, "load_trained", refused)
    monkeypatch.setattr("hirl.features.extractor.extract_features", passed)
    with pytest.raises(ValueError, match="tree: name the class yourself"):
        runs["hirl"].evaluate("knn", "tree", out=tmp_path / "out", cache=None, quiet=True)


def test_a_second_task_uses_the_cached_features(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs["hirl"]
    first = run.evaluate(QUICK, TreeAgreement(sample=50), device="cpu", quiet=True)
    assert len(list((run.folder / "features").iterdir())) == 4  # features and representations of two parts

    def never(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("features are computed again")

    monkeypatch.setattr(extractor, "extract_features", never)
    again = run.evaluate(QUICK, TreeAgreement(sample=50), Clustering(), device="cpu", quiet=True)
    assert again["knn"] == first["knn"]
    assert again["tree"] == first["tree"]
    with pytest.raises(AssertionError, match="computed again"):
        run.evaluate(QUICK, device="cpu", quiet=True, cache=None)


def test_a_changed_encoder_is_another_one(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    run.evaluate(QUICK, device="cpu", quiet=True)
    weights, metadata = run.encoder_weights()
    encoder = make_backbone(metadata.backbone, **metadata.backbone_args)
    save_encoder(run.encoder_file, encoder, metadata)
    run.evaluate(QUICK, device="cpu", quiet=True, reuse=True)
    before, after = stored(run, "knn")
    assert after["protocol"]["encoder"]["sha256"] != before["protocol"]["encoder"]["sha256"]
    assert after["rows"] != before["rows"]
    assert weights.keys() == encoder.state_dict().keys()


def test_results_of_an_earlier_revision_are_not_reused(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs["hirl"]
    measured = []

    def measure(task: KNN, _subject: Subject) -> Result:
        measured.append(task.revision)
        return Result({}, [])

    monkeypatch.setattr(KNN, "run", measure)
    task = KNN(ks=(7,))
    for revision in (1, 1, 2, 2, 1):
        monkeypatch.setattr(KNN, "revision", revision)
        run.evaluate(task, device="cpu", quiet=True, reuse=True)
    assert measured == [1, 2]
    assert [found["protocol"].get("revision") for found in stored(run, "knn")[-2:]] == [None, 2]


def test_the_same_encoder_by_whatever_name(runs: dict[str, Run], picture_files: Path, tmp_path: Path) -> None:
    run = runs["hirl"]
    file = Path(shutil.copy(run.encoder_file, tmp_path / "copied.safetensors"))
    weights = run.encoder_weights()[0]
    torch.save(weights, tmp_path / "plain.pth")
    save_file(weights, tmp_path / "plain.safetensors")
    named = {"backbone": "resnet10t", "backbone_args": NARROW}
    ways: list[tuple[Any, dict[str, Any]]] = [
        (run, {}),
        (str(run.folder), {}),
        (file, {}),
        (tmp_path / "plain.pth", named),
        (str(tmp_path / "plain.safetensors"), named),
        ("resnet10t", {"backbone_args": NARROW, "weights": tmp_path / "plain.pth"}),
        (run.encoder, {}),
    ]
    found = [
        hirl.evaluate(way, QUICK, data=picture_files, device="cpu", quiet=True, **options)["knn"]
        for way, options in ways
    ]
    assert all(one == found[0] for one in found)
    by_chance = hirl.evaluate(
        "random:resnet10t",
        QUICK,
        data=picture_files,
        backbone_args=NARROW,
        device="cpu",
        quiet=True,
        out=tmp_path / "out",
    )["knn"]
    assert by_chance != found[0]
    assert [file.name.split("-")[0] for file in (tmp_path / "out").iterdir()] == ["knn"]


@pytest.mark.parametrize("with_classifier", [True, False])
def test_a_torchvision_network_with_a_weights_file(with_classifier: bool, picture_files: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    network = torchvision.models.resnet18(num_classes=7)
    weights = network.state_dict()
    if not with_classifier:
        weights = {name: value for name, value in weights.items() if not name.startswith("fc.")}
    torch.save(weights, tmp_path / "resnet18.pth")
    options: dict[str, Any] = {"data": picture_files, "device": "cpu", "quiet": True}
    found = hirl.evaluate("torchvision:resnet18", QUICK, weights=tmp_path / "resnet18.pth", **options)
    network.fc = nn.Identity()
    assert found == hirl.evaluate(network, QUICK, **options)


def test_a_module_is_left_as_it_was_found(picture_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.random.get_rng_state()
    (found,) = hirl.evaluate(Colours(), QUICK, data=picture_files, device="cpu").values()
    parts = [open_images(picture_files, split=split) for split in ("train", "val")]
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    features = [Colours()((part.pixels / 255 - mean) / std) for part in parts]  # type: ignore[operator]
    labels = [part.labels for part in parts]
    assert labels[0] is not None
    assert labels[1] is not None
    accuracy = knn_accuracy(features[0], labels[0], features[1], labels[1], ks=(5, 10)).amax(0)
    assert list(found.headline.values()) == pytest.approx(accuracy.tolist(), abs=1.5 / 144)  # a tie may fall either way
    assert "4 classes" in capsys.readouterr().out
    assert torch.equal(torch.random.get_rng_state(), before)


def test_images_in_memory_and_of_two_sources() -> None:
    random = np.random.default_rng(0)
    shade = np.arange(60) % 3
    parts = [
        (np.clip(shade[:, None, None, None] * 90 + random.integers(0, 40, (60, 8, 8, 3)), 0, 255).astype(np.uint8))
        for _ in range(2)
    ]
    (found,) = hirl.evaluate(
        Colours(), KNN(ks=(1,)), data=(parts[0], shade), test_data=(parts[1], shade), device="cpu", quiet=True
    ).values()
    assert found.headline == {"3 classes": 1.0}
    with pytest.raises(ValueError, match="needs separate test images: name them with --test_data"):
        hirl.evaluate(Colours(), "knn", data=(parts[0], shade), quiet=True)


def test_of_other_data_with_parts_the_val_part_is_tested(tmp_path: Path) -> None:
    """Tested on its training split, nearest neighbours would find each image itself and always be right."""
    random = np.random.default_rng(0)
    content: dict[str, Any] = {}
    for part, count in (("train", 60), ("val", 20)):
        content[f"{part}_images"] = random.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        content[f"{part}_labels"] = random.integers(0, 5, count)
    file = tmp_path / "noise.npz"
    np.savez(file, allow_pickle=False, **content)
    (found,) = hirl.evaluate(Colours(), KNN(ks=(1,)), data=file, test_data=file, device="cpu", quiet=True).values()
    assert found.headline["5 classes"] < 0.5
    np.savez(file, allow_pickle=False, **{name: part for name, part in content.items() if name.startswith("train")})
    with pytest.raises(ValueError, match=r"has no split 'val'.*; name the test images with --test_split"):
        hirl.evaluate(Colours(), "knn", data=file, test_data=file, device="cpu", quiet=True)


def test_an_evaluation_of_your_own(picture_files: Path) -> None:
    class Width(Evaluation):
        name = "width"

        def run(self, subject: Subject) -> Result:
            return Result({"width": float(subject.features("test").shape[1])}, [])

    assert hirl.evaluate(Colours(), Width(), data=picture_files, quiet=True)["width"].headline == {"width": 12.0}


# The default tasks


def test_a_small_set_gets_all_default_tasks(
    picture_files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the usual Ks, those that fit are used; Ks of the user's that do not fit are refused before the features."""
    found = hirl.evaluate(Colours(), data=picture_files, device="cpu")
    assert list(found) == ["knn", "clustering", "tree", "linear"]
    assert {row["K"] for row in found["knn"].rows} == {10, 20, 100}
    shown = capsys.readouterr().out
    assert shown.count("knn: K = 200 left out, being more than the 144 training images\n") == 1

    def never(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("features are computed")

    monkeypatch.setattr(extractor, "extract_features", never)
    with pytest.raises(ValueError, match="knn: K is 200, but must be at most the number of training images, 144"):
        hirl.evaluate(Colours(), Clustering(), KNN(ks=(10, 20, 100, 200)), data=picture_files, device="cpu", quiet=True)


def test_without_labels_the_default_tasks_that_need_none_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that the user names is an error; if no task is left, one sentence says what to do."""
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "bare.npz", train_images=images, val_images=images[::-1])
    options: dict[str, Any] = {"data": tmp_path / "bare.npz", "device": "cpu"}
    with pytest.raises(ValueError, match=r"bare\.npz.* has no labels, but knn, clustering, tree, linear need") as error:
        hirl.evaluate(Colours(), **options)
    assert "name labelled images with --data, or see what was learnt without labels by hirl embed" in str(error.value)
    assert "\n" not in str(error.value)
    np.savez(tmp_path / "whole.npz", images=images)
    with pytest.raises(ValueError, match="no labels, but knn, clustering, tree, linear need them"):
        hirl.evaluate(Colours(), data=tmp_path / "whole.npz", device="cpu")

    monkeypatch.setattr(Clustering, "needs", Needs())
    monkeypatch.setattr(Clustering, "run", lambda _, subject: Result({"images": float(len(subject.test))}, []))
    found = hirl.evaluate(Colours(), **options)
    assert {task: result.headline for task, result in found.items()} == {"clustering": {"images": 40.0}}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "skipped" in line)
    assert re.fullmatch(r"skipped, because .*bare\.npz.* has no labels: knn, tree, linear", line)
    with pytest.raises(ValueError, match=r"knn: .* has no labels, but this evaluation needs them"):
        hirl.evaluate(Colours(), "clustering", "knn", **options)


# Refusals


def test_two_evaluations_of_one_task_are_refused(picture_files: Path) -> None:
    """Results are returned by task: one of them would be lost."""
    with pytest.raises(ValueError, match="the same task is named twice in knn, clustering, knn, but results"):
        hirl.evaluate(Colours(), KNN(ks=(5,)), "clustering", KNN(ks=(7,)), data=picture_files, quiet=True)


class Code:
    def __reduce__(self) -> Any:
        return (exit, ("code was run",))


@pytest.fixture
def files(runs: dict[str, Run], tmp_path: Path) -> dict[str, Path]:
    weights = runs["hirl"].encoder_weights()[0]
    less = {name: value for name, value in weights.items() if "layer4" not in name}
    made = {name: tmp_path / f"{name}.pth" for name in ("less", "code", "cut")}
    made["full"] = tmp_path / "full.safetensors"
    torch.save(less, made["less"])
    made["code"].write_bytes(pickle.dumps({"weight": Code()}))
    made["cut"].write_bytes(made["less"].read_bytes()[:-200])
    save_file(weights, made["full"])
    return made


NAMED = {"backbone": "resnet10t", "backbone_args": NARROW}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "missing weights": ("{less}", NAMED, r"do not fit resnet10t: \d+ missing \(layer4"),
    "weights of another network": ("{full}", {"backbone": "resnet18"}, "they must match completely"),
    "weights of another width": ("{full}", {"backbone": "resnet10t"}, "of another shape"),
    "weights without a name": ("{full}", {}, "not the name of their network"),
    "a pickle of code": ("{code}", NAMED, "is not a file of plain weights"),
    "a file cut short": ("{cut}", NAMED, "is not a file of plain weights"),
    "a file that is not there": ("nowhere.pth", {}, "there is no run folder and no file"),
    "a folder of no run": ("{folder}", {}, "is not a run folder"),
    "an unknown name": ("resnet5", {}, "not the name of a timm model"),
    "an unknown torchvision name": ("torchvision:resnet5", {}, "torchvision has no classification network 'resnet5'"),
    "a network without a classifier": ("torchvision:squeezenet1_0", {}, "does not end in a linear classifier"),
    "a backbone for a run": ("{run}", {"backbone": "resnet18"}, "a run has its own"),
    "weights for a run": ("{run}", {"weights": "x.pth"}, "a run has its own"),
    "another size for a run": ("{run}", {"image_size": 32}, "was trained with 16"),
    "a method for no run": ("random:resnet10t", {"method": "x.Y"}, "only a run has one"),
    "a size the network cannot take": (
        "random:swin_tiny_patch4_window7_224",
        {},
        "cannot take images of 16 × 16 pixels",
    ),
    "a negative seed": ("random:resnet10t", {"seed": -1}, "seed is -1, but must be at least 0"),
    "a file for a folder": ("random:resnet10t", {"out": "{full}"}, "it is not a folder"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_does_not_fit_is_refused(
    mistake: str, files: dict[str, Path], runs: dict[str, Run], picture_files: Path, tmp_path: Path
) -> None:
    subject, options, message = REFUSED[mistake]
    named = {**files, "run": runs["hirl"].folder, "folder": tmp_path}
    options = {name: value.format(**named) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message) as error:
        hirl.evaluate(subject.format(**named), QUICK, data=picture_files, device="cpu", quiet=True, **options)
    assert "\n" not in str(error.value)


def test_modules_that_do_not_pool_and_other_things_are_refused(picture_files: Path) -> None:
    with pytest.raises(ValueError, match=r"pooled features of shape \(B, width\), but gives \(2, 3, 16, 16\)"):
        hirl.evaluate(nn.Identity(), QUICK, data=picture_files, quiet=True)
    with pytest.raises(ValueError, match="a dict is not an encoder"):
        hirl.evaluate({}, QUICK, data=picture_files, quiet=True)
    with pytest.raises(ValueError, match="give a folder or a known name with --data"):
        hirl.evaluate(Colours(), QUICK, quiet=True)
    with pytest.raises(ValueError, match=f"there is no evaluation 'nearest': choose from {', '.join(EVALUATIONS)}"):
        hirl.evaluate(Colours(), "nearest", data=picture_files, quiet=True)
