"""`hirl.evaluate`: any encoder on the same protocol, figures with their protocol, weights that fit or are refused."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

import hirl
from hirl.backbones import make_backbone
from hirl.data import open_images
from hirl.data.loader import IMAGENET_MEAN, IMAGENET_STD, normalisation
from hirl.evals import KNN, Clustering, HierarchyAgreement
from hirl.evals import evaluate as evaluation
from hirl.evals.base import Evaluation, Result, Subject
from hirl.evals.feature_cache import Shown, extracted
from hirl.methods import MoCoV2
from hirl.metrics.knn import knn_accuracy
from hirl.runs import representations as trained
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.runs.folder import Run
from hirl.runs.representations import load_trained
from hirl.terminal.progress import no_progress

QUICK = KNN(ks=(5, 10))
NARROW = {"channels": [8, 8, 16, 16]}


class Mine(MoCoV2):
    """A method of the user's own."""


class Colours(nn.Module):
    """The mean colour of each quarter: an encoder of no weights."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


def test_a_run_is_evaluated_at_every_label_level_and_written_down(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    results = run.evaluate(QUICK, Clustering(restarts=1), HierarchyAgreement(sample=100), seed=3, device="cpu")
    assert list(results) == ["knn", "clustering", "hierarchy"]
    assert list(results["knn"].headline) == ["48 classes", "12 classes", "4 classes"]
    told = json.loads((run.folder / "results" / "knn.json").read_text())
    assert told["arguments"] == {"ks": [5, 10], "temperature": 0.07}
    assert told["headline"] == results["knn"].headline
    assert told["rows"] == results["knn"].rows
    assert told["seed"] == 3
    assert told["encoder"]["method"] == "MoCoV2"
    assert re.fullmatch(r"[0-9a-f]{64}", told["encoder"]["sha256"])
    assert told["data"]["train"]["images"] == told["data"]["test"]["images"] == 144
    assert told["data"]["test"]["classes"] == [48, 12, 4]
    assert told["versions"]["torch"] == torch.__version__.split("+")[0]
    assert told["images"]["size"] == 16
    hierarchy = results["hierarchy"]
    assert hierarchy.chosen["tree"] == "the run's own"
    assert {row["from"] for row in hierarchy.rows if "from" in row} == {"pooled features", "z0", "z1", "z2"}


def test_both_arms_have_a_tree_to_compare(runs: dict[str, Run]) -> None:
    (found,) = runs["base"].evaluate(HierarchyAgreement(levels=(24, 6)), device="cpu", quiet=True).values()
    assert found.chosen["tree"] == "built over 144 training images"
    assert {row["from"] for row in found.rows if "from" in row} == {"pooled features", "z0"}


def test_a_second_task_finds_the_features_made(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs["hirl"]
    first = run.evaluate(QUICK, HierarchyAgreement(sample=50), device="cpu", quiet=True)
    assert len(list((run.folder / "features").iterdir())) == 4  # features and representations of two parts

    def never(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("features are made again")

    monkeypatch.setattr(evaluation, "extracted", never)
    again = run.evaluate(QUICK, HierarchyAgreement(sample=50), Clustering(), device="cpu", quiet=True)
    assert again["knn"] == first["knn"]
    assert again["hierarchy"] == first["hierarchy"]
    with pytest.raises(AssertionError, match="made again"):
        run.evaluate(QUICK, device="cpu", quiet=True, cache=None)


def test_a_changed_encoder_is_another_one(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    run.evaluate(QUICK, device="cpu", quiet=True)
    before = json.loads((run.folder / "results" / "knn.json").read_text())
    weights, about = run.encoder_weights()
    encoder = make_backbone(about["backbone"], **about["backbone_args"])
    del about["format"]
    run.save_encoder(encoder, about)
    run.evaluate(QUICK, device="cpu", quiet=True)
    after = json.loads((run.folder / "results" / "knn.json").read_text())
    assert after["encoder"]["sha256"] != before["encoder"]["sha256"]
    assert after["rows"] != before["rows"]
    assert weights.keys() == encoder.state_dict().keys()


def test_other_images_do_not_replace_a_runs_own_results(runs: dict[str, Run], picture_files: Path) -> None:
    run = runs["hirl"]
    other = shutil.copy(picture_files, run.folder.parent / "other.npz")
    for data in (None, str(picture_files), other):
        run.evaluate(QUICK, data=data, device="cpu", quiet=True)
    written = sorted(str(file.relative_to(run.folder)) for file in (run.folder / "results").rglob("*.json"))
    assert written == ["results/knn.json", "results/other.npz/knn.json"]


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
        "resnet10t", QUICK, data=picture_files, backbone_args=NARROW, device="cpu", quiet=True, out=tmp_path / "out"
    )["knn"]
    assert by_chance != found[0]
    assert (tmp_path / "out" / "knn.json").is_file()


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
    accuracy = knn_accuracy(features[0], labels[0], features[1], labels[1], ks=QUICK.ks).amax(0)
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
    with pytest.raises(ValueError, match="Name the images to test on with test_data"):
        hirl.evaluate(Colours(), "knn", data=(parts[0], shade), quiet=True)


def test_an_evaluation_of_ones_own(picture_files: Path) -> None:
    class Width(Evaluation):
        name = "width"

        def run(self, subject: Subject) -> Result:
            return Result({"width": float(subject.features("test").shape[1])}, [])

    assert hirl.evaluate(Colours(), Width(), data=picture_files, quiet=True)["width"].headline == {"width": 12.0}


# The method and heads of a run


def test_representations_are_what_training_would_make_of_the_images(runs: dict[str, Run], picture_files: Path) -> None:
    images = open_images(picture_files)
    for arm, count in (("hirl", 3), ("base", 1)):
        run = runs[arm]
        found = extracted(load_trained(run), images, Shown(16, normalisation(images)), what="z", progress=no_progress)
        assert found.shape == (144, count, 16)
        state = load_checkpoint(run.checkpoint_file)["joint"]
        network = load_trained(run)
        assert not network.training
        assert all(torch.equal(network.state_dict()[f"method.{name}"], state[f"method.{name}"]) for name in ("queue",))
        if arm == "hirl":
            assert network.tree is not None
            assert torch.equal(network.tree.leaves, run.tree.leaves)
            z0 = found[:, 0].double()
            head = {name: value.double() for name, value in state.items() if name.startswith("paths.heads.1.")}
            hidden = z0 @ head["paths.heads.1.0.weight"].T
            scale = (head["paths.heads.1.1.running_var"] + 1e-5).rsqrt() * head["paths.heads.1.1.weight"]
            hidden = (hidden - head["paths.heads.1.1.running_mean"]) * scale + head["paths.heads.1.1.bias"]
            z2 = hidden.relu() @ head["paths.heads.1.3.weight"].T + head["paths.heads.1.3.bias"]
            torch.testing.assert_close(found[:, 2].double(), z2, rtol=1e-4, atol=1e-5)


def test_a_method_of_the_users_is_never_imported_from_a_file(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("hirl.methods.moco_v2.MoCoV2", f"{__name__}.Mine"))
    with pytest.raises(ValueError, match=r"which is not of hirl: give its class with method"):
        run.evaluate("hierarchy", device="cpu", quiet=True)
    run.evaluate(QUICK, device="cpu", quiet=True)  # which needs the encoder alone
    run.evaluate(HierarchyAgreement(sample=50), method=Mine, device="cpu", quiet=True)
    with pytest.raises(ValueError, match="not by MoCoV2"):
        load_trained(run, method=MoCoV2)
    with pytest.raises(ValueError, match="is no class of a method"):
        load_trained(run, method="os.path.join")
    with pytest.raises(ValueError, match=r"there is no method 'no\.such\.Method'"):
        load_trained(run, method="no.such.Method")
    assert trained.OURS == "hirl.methods."


def test_a_checkpoint_that_does_not_fit_is_refused(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    state = load_checkpoint(run.checkpoint_file)
    del state["joint"]["method.queue"]
    save_checkpoint(run.checkpoint_file, state)
    with pytest.raises(ValueError, match="do not fit MoCoV2"):
        load_trained(run)
    run.checkpoint_file.unlink()
    with pytest.raises(ValueError, match=r"has no last\.ckpt"):
        load_trained(run)


# Refusals


class Code:
    def __reduce__(self) -> Any:
        return (exit, ("code was run",))


@pytest.fixture
def files(runs: dict[str, Run], tmp_path: Path) -> dict[str, Path]:
    weights = runs["hirl"].encoder_weights()[0]
    less = {name: value for name, value in weights.items() if "layer4" not in name}
    made = {name: tmp_path / f"{name}.pth" for name in ("less", "code", "nested", "cut")}
    made["full"] = tmp_path / "full.safetensors"
    torch.save(less, made["less"])
    made["code"].write_bytes(pickle.dumps({"weight": Code()}))
    torch.save({"state_dict": weights}, made["nested"])
    made["cut"].write_bytes(made["less"].read_bytes()[:-200])
    save_file(weights, made["full"])
    return made


NAMED = {"backbone": "resnet10t", "backbone_args": NARROW}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "missing weights": ("{less}", NAMED, r"do not fit resnet10t: \d+ missing \(layer4"),
    "weights of another network": ("{full}", {"backbone": "resnet18"}, "they must match fully"),
    "weights of another width": ("{full}", {"backbone": "resnet10t"}, "of another shape"),
    "weights without a name": ("{full}", {}, "not the name of their network"),
    "a pickle of code": ("{code}", NAMED, "is no file of plain weights"),
    "a wrapped state dict": ("{nested}", NAMED, "holds no plain state dict"),
    "a file cut short": ("{cut}", NAMED, "is no file of plain weights"),
    "a file that is not there": ("nowhere.pth", {}, "there is no run folder and no file"),
    "a folder of no run": ("{folder}", {}, "is no run"),
    "an unknown name": ("resnet5", {}, "not the name of a timm model"),
    "an unknown torchvision name": ("torchvision:resnet5", {}, "torchvision has no classification network 'resnet5'"),
    "a network without a classifier": ("torchvision:squeezenet1_0", {}, "does not end in a linear classifier"),
    "a backbone for a run": ("{run}", {"backbone": "resnet18"}, "a run has its own"),
    "weights for a run": ("{run}", {"weights": "x.pth"}, "a run has its own"),
    "another size for a run": ("{run}", {"image_size": 32}, "was trained with 16"),
    "a method for no run": ("resnet10t", {"method": "x.Y"}, "only a run has one"),
    "a size the network cannot take": ("swin_tiny_patch4_window7_224", {}, "cannot take images of 16 × 16 pixels"),
    "a negative seed": ("resnet10t", {"seed": -1}, "seed must be at least 0"),
    "a file for a folder": ("resnet10t", {"out": "{full}"}, "it is no folder"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_does_not_fit_is_refused(
    mistake: str, files: dict[str, Path], runs: dict[str, Run], picture_files: Path, tmp_path: Path
) -> None:
    subject, options, said = REFUSED[mistake]
    named = {**files, "run": runs["hirl"].folder, "folder": tmp_path}
    options = {name: value.format(**named) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(ValueError, match=said) as error:
        hirl.evaluate(subject.format(**named), QUICK, data=picture_files, device="cpu", quiet=True, **options)
    assert "\n" not in str(error.value)


def test_modules_that_do_not_pool_and_other_things_are_refused(picture_files: Path) -> None:
    with pytest.raises(ValueError, match=r"pooled features of shape \(B, width\), but gives \(2, 3, 16, 16\)"):
        hirl.evaluate(nn.Identity(), QUICK, data=picture_files, quiet=True)
    with pytest.raises(ValueError, match="a dict cannot be evaluated"):
        hirl.evaluate({}, QUICK, data=picture_files, quiet=True)
    with pytest.raises(ValueError, match="give data"):
        hirl.evaluate(Colours(), QUICK, quiet=True)
    with pytest.raises(ValueError, match="there is no evaluation 'nearest': choose from knn, linear"):
        hirl.evaluate(Colours(), "nearest", data=picture_files, quiet=True)
