"""A run from the checkpoint of a method's own authors: its heads come along, with trees from the first epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from hirl import Run, pretrain
from hirl.cli.main import main
from hirl.data import Shapes
from hirl.features.open_encoder import open_encoder
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import DINO, MoCoV2
from hirl.methods.base import Plan
from hirl.train import setup
from hirl.train.loop import Loop

OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 16, "image_size": 16, "accelerator": "cpu", "devices": 1}
OPTIONS |= {"workers": 0, "knn_every": 0}


@pytest.fixture(scope="module")
def shapes() -> Shapes:
    return Shapes(images=64, size=16, cache=False)


@pytest.fixture(scope="module")
def moco_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As MoCo's own program saves it: torchvision's network with an MLP for its classifier, wrapped by DDP."""
    torch.manual_seed(5)

    class TheirMoCo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder_q, self.encoder_k = (ResNet(BasicBlock, [1, 1, 1, 1], num_classes=8) for _ in range(2))
            for network in (self.encoder_q, self.encoder_k):
                network.fc = nn.Sequential(nn.Linear(512, 24), nn.ReLU(), network.fc.__class__(24, 8))
            self.register_buffer("queue", nn.functional.normalize(torch.randn(8, 128), dim=0))
            self.register_buffer("queue_ptr", torch.tensor([32]))

    state = {f"module.{name}": tensor for name, tensor in TheirMoCo().state_dict().items()}
    file = tmp_path_factory.mktemp("moco") / "checkpoint_0199.pth.tar"
    torch.save({"epoch": 200, "arch": "resnet", "state_dict": state, "optimizer": {"state": {}}}, file)
    return file


class Stopped(BaseException):
    """Ends a run before its first step."""


@pytest.fixture
def before_first_step(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where the state of a run and its tree are put before its first step, which ends it."""
    found: dict[str, Any] = {}

    def stop(self: Loop, *_: Any) -> None:
        assert self.paths is not None
        found.update(method=self.method, tree=self.paths.tree)
        raise Stopped

    monkeypatch.setattr(Loop, "_step", stop)
    return found


def test_moco_v2_by_its_name_alone(
    shapes: Shapes,
    moco_file: Path,
    tmp_path: Path,
    before_first_step: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Stopped):
        pretrain(shapes, out=tmp_path / "run", encoder=str(moco_file), **OPTIONS | {"method": MoCoV2})
    method, theirs = before_first_step["method"], torch.load(moco_file, weights_only=True)["state_dict"]
    assert (method.dim, method.hidden, method.queue_length) == (8, 24, 64)
    assert method.lr == pytest.approx(0.003)
    for ours, name in ((method.query, "encoder_q"), (method.key, "encoder_k")):
        assert torch.equal(ours.head.layers[2].weight, theirs[f"module.{name}.fc.2.weight"])
        assert torch.equal(ours.backbone.layer4[0].conv2.weight, theirs[f"module.{name}.layer4.0.conv2.weight"])
    assert torch.equal(method.queue, theirs["module.queue"].T.roll(-32, 0)[-64:])
    assert before_first_step["tree"].count == len(shapes)
    printed = capsys.readouterr().out
    heads = "query and key network with their heads, a queue of 128 keys, of which the newest 64 are kept"
    then = "z0 is trained already, so the first tree is built before the first epoch"
    assert f"heads are loaded too: {heads}; {then}" in printed
    assert "in the layout of MoCo v2, licence not stated, trained without labels\n" in printed


def test_a_recipe_starts_its_tree_with_the_heads(
    moco_file: Path,
    picture_files: Path,
    tmp_path: Path,
    before_first_step: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["--method.backbone_args={layers: [1, 1, 1, 1]}", "--method.backbone=resnet18", "--method.hidden=24"]
    small += ["--method.dim=8", "--method.queue_length=128", "--method.bn_splits=2", "--hierarchy.levels", "12", "4"]
    small += ["--epochs=4", "--batch_size=16", "--image_size=16", "--accelerator=cpu", "--workers=0", "--knn_every=0"]
    command = ["pretrain", str(picture_files), "--config", "imagenet/moco_v2", "--encoder", str(moco_file), *small]
    with pytest.raises(Stopped):
        main([*command, "--out", str(tmp_path / "run")])
    assert before_first_step["tree"] is not None
    assert Run(tmp_path / "run").config["hierarchy"]["start_epoch"] == 0
    with pytest.raises(Stopped):  # what the command line says stays
        main([*command, "--hierarchy.start_epoch", "2", "--out", str(tmp_path / "later")])
    assert Run(tmp_path / "later").config["hierarchy"]["start_epoch"] == 2
    capsys.readouterr()
    assert main([*command, "--method.dim", "16", "--out", str(tmp_path / "other")]) == 2
    message = capsys.readouterr().err
    assert "do not fit MoCoV2: 5 of another shape (key.head.layers.2.bias, key.head.layers.2.weight, query." in message


def test_without_the_name_of_a_method_its_encoder_is_adapted(
    shapes: Shapes, moco_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}

    def build(_fabric: Any, settings: Any, _images: Any, start: Any, **_: Any) -> None:
        found.update(start=start, settings=settings)
        raise Stopped

    monkeypatch.setattr(setup, "build", build)
    with pytest.raises(Stopped):
        pretrain(shapes, out=tmp_path / "run", encoder=str(moco_file), **OPTIONS)
    assert found["settings"].method.has_adapter
    assert found["start"].heads is None


def test_dino(shapes: Shapes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of a published width and depth: a file of any other may have lost blocks, and is refused.
    sizes = {"patch_size": 8, "img_size": 16}
    theirs = DINO(backbone="vit_tiny_patch16_224", backbone_args=sizes, dim=8, hidden=16, prototypes=12)
    theirs.build(Plan(1, 1, 8, 16, 3))
    ones = {"head.last_layer.weight_g": torch.ones(12, 1)}
    sides = {}
    for name, network in (("student", theirs.student), ("teacher", theirs.teacher)):
        state = {key.replace("last_layer.weight", "last_layer.weight_v"): t for key, t in network.state_dict().items()}
        sides[name] = {f"{'module.' if name == 'student' else ''}{key}": t for key, t in (state | ones).items()}
    file = tmp_path / "dino.pth"
    torch.save(sides | {"dino_loss": {"center": torch.randn(1, 12)}, "epoch": 100}, file)
    hierarchy = Hierarchy(levels=(8, 3))
    run = pretrain(shapes, hierarchy=hierarchy, out=tmp_path / "run", encoder=str(file), **OPTIONS | {"method": DINO})
    assert run.config["hierarchy"]["start_epoch"] == 0
    arguments = run.config["method"]["init_args"]
    assert (arguments["prototypes"], arguments["hidden"], arguments["frozen_epochs"]) == (12, 16, 0.0)
    assert "student and teacher with their heads, centre" in capsys.readouterr().out

    # Where the weights come from is kept in the run and its encoder, and shown.
    origin = f"{file}, in the layout of DINO, licence not stated, trained without labels"
    since = f"; since then trained on {shapes.name} by DINO and HIRL, without labels"
    assert str(run.origin) == origin
    assert str(open_encoder(run).provenance) == str(open_encoder(run.encoder_file).provenance) == origin + since
    with safe_open(run.encoder_file, "pt") as opened:
        assert "in the layout of DINO" in opened.metadata()["about"]
    assert main(["show", str(run.folder)]) in (0, None)
    assert f"started from {origin}" in capsys.readouterr().out
