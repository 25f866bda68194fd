"""Pretraining from the outside: both arms, the run folder, refused settings."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

from hirl.cli.main import main
from hirl.data import Shapes
from hirl.explore.embed import embed
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import DINO, Method, MoCoV2
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.train import keeping, loop
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe

HIERARCHY = Hierarchy(levels=(12, 4), negatives=5, start_epoch=2)
OPTIONS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "accelerator": "cpu", "devices": 1, "knn_every": 3}


def moco(**changes: Any) -> MoCoV2:
    narrow = {"channels": [8, 8, 16, 16]}
    settings: dict[str, Any] = {"dim": 16, "queue_length": 64, "bn_splits": 2, "momentum": 0.9}
    return MoCoV2(backbone="resnet10t", backbone_args=narrow, **(settings | changes))


def dino() -> DINO:
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}
    return DINO(
        backbone="vit_tiny_patch16_224",
        backbone_args=small,
        dim=16,
        hidden=32,
        prototypes=64,
        local_crops=2,
        warmup_epochs=1,
    )


@pytest.fixture(scope="module")
def shapes() -> Shapes:
    return Shapes(images=100, size=16, cache=False)


@pytest.fixture(scope="module")
def finished(shapes: Shapes, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(shapes, moco(), HIERARCHY, out=tmp_path_factory.mktemp("runs") / "moco", **OPTIONS)


def test_a_run_folder_explains_itself(finished: Run, shapes: Shapes) -> None:
    config = yaml.safe_load(finished.config_file.read_text())
    assert config["method"]["class_path"] == "hirl.methods.moco_v2.MoCoV2"
    assert config["hierarchy"]["levels"] == [12, 4]
    assert config["epochs"] == 3
    started = json.loads(finished.about_file.read_text())
    assert started[0]["versions"]["torch"] == version("torch")
    lines = list(finished.metrics())
    assert {"recent_loss_image", "images_per_second", "waiting_for_data", "lr"} <= set(lines[0])
    assert any({"knn_train_level_2", "majority_train_level_2"} <= line.keys() for line in lines)
    assert any("seconds_kmeans" in line for line in lines)
    assert finished.finished
    assert finished.tree.levels == (12, 4)
    assert len(finished.tree.leaves) == len(shapes)
    assert (finished.folder / "tensorboard").is_dir()
    assert load_checkpoint(finished.checkpoint_file)["step"] == 3 * (100 // 16)


def test_the_settings_are_stored_with_what_they_came_to(
    finished: Run, shapes: Shapes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The learning rate for the batch size stands beside the configuration, which can be used again as it is."""
    expected = {"peak_lr": 0.03 * 16 / 256, "image_size": 16, "steps_per_epoch": 6, "levels": [12, 4], "start_epoch": 2}
    assert finished.resolved == expected
    assert main(["show", str(finished.folder)]) == 0
    assert "resolved: peak_lr 0.001875, image_size 16" in capsys.readouterr().out
    assert finished.config["method"]["init_args"]["lr"] == 0.03
    options = {name: value for name, value in recipe(finished.config_file).items() if name in ("method", "hierarchy")}
    again = pretrain(shapes, out=tmp_path / "again", **options, **OPTIONS | {"epochs": 3})
    assert again.resolved == expected


def test_the_encoder_loads_strictly_into_timm(finished: Run) -> None:
    weights, about = finished.encoder_weights()
    plain = timm.create_model(about.backbone, num_classes=0, **about.backbone_args)
    plain.load_state_dict(weights, strict=True)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(plain.eval()(images), finished.encoder(images))


def test_a_finished_run_says_so_and_a_changed_one_is_refused(
    finished: Run, shapes: Shapes, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.stat().st_mtime_ns for file in finished.folder.iterdir() if file.suffix in (".ckpt", ".yaml")}
    pretrain(shapes, moco(), HIERARCHY, out=finished.folder, **OPTIONS)
    assert "is finished" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"another configuration \(method\.init_args\.temperature: 0\.2 → 0\.5\)"):
        pretrain(shapes, moco(temperature=0.5), HIERARCHY, out=finished.folder, **OPTIONS)
    with pytest.raises(ValueError, match=r"hierarchy: .*→ None"):
        pretrain(shapes, moco(), None, out=finished.folder, **OPTIONS)
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_a_refused_start_does_not_stand_in_the_way_of_the_corrected_one(shapes: Shapes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="queue_length"):
        pretrain(shapes, moco(queue_length=7), HIERARCHY, out=tmp_path / "run", **OPTIONS)
    run = pretrain(shapes, moco(), HIERARCHY, out=tmp_path / "run", **OPTIONS)
    assert run.finished
    assert run.config["method"]["init_args"]["queue_length"] == moco().queue_length


@pytest.mark.parametrize("make", [moco, dino])
def test_the_arms_are_equal_to_the_bit_until_the_tree(
    make: Any, shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: dict[str, dict[int, Any]] = {"base": {}, "hirl": {}}
    for arm, hierarchy in (("base", None), ("hirl", HIERARCHY)):
        kept = states[arm]
        monkeypatch.setattr(
            keeping,
            "save_checkpoint",
            lambda _, state, kept=kept: kept.update({state["step"]: copy.deepcopy(state)}),
        )
        pretrain(shapes, make(), hierarchy, out=tmp_path / arm, **OPTIONS)
    epoch = 100 // 16
    for step, equal in ((epoch, True), (2 * epoch, True), (3 * epoch, False)):
        base = states["base"][step]["joint"]
        hirl = {name: value for name, value in states["hirl"][step]["joint"].items() if name.startswith("method.")}
        assert base.keys() == hirl.keys()
        assert all(torch.equal(base[name], hirl[name]) for name in base) is equal


@pytest.mark.parametrize("features", ["bank", "pass"])
def test_features_from_the_bank_and_from_a_pass(features: Any, shapes: Shapes, tmp_path: Path) -> None:
    run = pretrain(shapes, dino(), Hierarchy(levels=(12, 4), features=features), out=tmp_path / "run", **OPTIONS)
    assert int(run.tree.sizes(0).sum()) == 100
    assert any(line.get("loss_spd", 0) > 0 for line in run.metrics())


def test_levels_and_start_fit_the_data_and_are_printed(
    shapes: Shapes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pretrain(shapes, moco(), Hierarchy(), out=tmp_path / "run", **OPTIONS)
    output = capsys.readouterr().out
    levels = ", ".join(map(str, run.tree.levels))
    assert f"hierarchy of {levels} prototypes; the first tree is built after epoch 1" in output
    assert "learning rate 0.00187 for this batch size" in output


def test_an_unlabelled_folder_with_a_bad_file(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 256, (18 + number % 2, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number:02d}.png")
    (photos / "07.png").write_bytes(b"broken")
    options = OPTIONS | {"image_size": 16, "workers": 0}
    run = pretrain(str(photos), moco(), Hierarchy(levels=(6, 2), start_epoch=1), out=tmp_path / "run", **options)
    assert "07.png" in run.skipped_file.read_text()
    assert run.tree.leaves[7] == -1
    assert int(run.tree.sizes(0).sum()) == run.tree.count == 39
    assert not any(name.startswith("knn") for line in run.metrics() for name in line)
    assert len(run.tree.leaves) == 40


def test_a_run_is_named_after_the_data_and_not_after_their_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for part, count in (("train", 16), ("val", 1)):
        (tmp_path / "zoo" / part).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / "zoo" / part / f"{number}.png")
    run = pretrain("zoo/", moco(), None, **OPTIONS | {"epochs": 1})
    assert run.folder == Path("runs/zoo-mocov2-base-0")


def test_grey_images_with_a_normalisation_of_their_own(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16), dtype=np.uint8)
    options = OPTIONS | {"channels": 1, "mean": (0.3,), "std": (0.2,)}
    run = pretrain((pixels, np.arange(40) % 4), moco(), None, out=tmp_path / "run", **options)
    weights, about = run.encoder_weights()
    assert weights["conv1.0.weight"].shape[1] == 1
    assert (about.mean, about.std) == ((0.3,), (0.2,))
    assert (run.config["mean"], run.config["channels"]) == ([0.3], 1)


def test_accumulated_parts_make_the_same_number_of_steps(shapes: Shapes, tmp_path: Path) -> None:
    run = pretrain(shapes, dino(), HIERARCHY, out=tmp_path / "run", **(OPTIONS | {"accumulate": 2}))
    assert load_checkpoint(run.checkpoint_file)["step"] == 3 * (100 // 16)


def test_a_loss_that_is_not_finite_stops_the_run(
    shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = MoCoV2.forward

    def broken(self: Method, views: Any, masks: Any, step: int) -> Any:
        output = forward(self, views, masks, step)  # type: ignore[arg-type]
        return output if step != 8 else type(output)(output.loss * torch.nan, output.z0, output.target_z0)

    monkeypatch.setattr(MoCoV2, "forward", broken)
    with pytest.raises(ValueError, match=r"nan at step 8 \(epoch 2\).*last good checkpoint is from step 6"):
        pretrain(shapes, moco(), None, out=tmp_path / "run", **OPTIONS)
    listed = (tmp_path / "run" / "failed_batch.txt").read_text().splitlines()
    assert len(listed) == 16
    state = load_checkpoint(tmp_path / "run" / "last.ckpt")
    assert all(value.isfinite().all() for value in state["joint"].values() if isinstance(value, torch.Tensor))
    run = Run(tmp_path / "run")
    assert "lower the learning rate; the images" in run.log_file.read_text()  # it had full precision already
    assert run.state.endswith("; it stopped since the loss is nan at step 8 (epoch 2)")
    run.checkpoint_file.unlink()
    run.metrics_file.unlink()
    with pytest.raises(ValueError, match=r"has no encoder: training stopped since the loss is nan at step 8"):
        _ = run.encoder


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Make everything that MoCo v2 gives at a step NaN, as weights that are NaN would."""
    forward = MoCoV2.forward

    def broken(self: Method, views: Any, masks: Any, step: int) -> Any:
        output = forward(self, views, masks, step)  # type: ignore[arg-type]
        factor = torch.nan if step == at else 1.0
        assert output.target_z0 is not None
        return type(output)(output.loss * factor, output.z0 * factor, output.target_z0 * factor)

    monkeypatch.setattr(MoCoV2, "forward", broken)


@pytest.mark.parametrize(("minutes", "good"), [(10.0, 6), (0.0, 8)])
def test_a_loss_that_a_gpu_has_not_waited_for_is_found_before_a_checkpoint(
    minutes: float, good: int, shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the epoch, or before the checkpoint of the next step; the batch is that of the CPU."""
    poison(monkeypatch, 8)
    listed = {}
    for kind, at_once in (("cpu", ("cpu",)), ("gpu", ())):
        monkeypatch.setattr(loop, "SYNCHRONOUS_DEVICES", at_once)
        with pytest.raises(ValueError, match=rf"nan at step 8 \(epoch 2\).*last good checkpoint is from step {good}"):
            pretrain(shapes, moco(), None, out=tmp_path / kind, checkpoint_minutes=minutes, **OPTIONS)
        listed[kind] = (tmp_path / kind / "failed_batch.txt").read_text()
        state = load_checkpoint(tmp_path / kind / "last.ckpt")
        assert state["step"] == good
        assert all(value.isfinite().all() for value in state["joint"].values() if isinstance(value, torch.Tensor))
    assert listed["gpu"] == listed["cpu"]
    assert len(listed["gpu"].splitlines()) == 16


def test_z0_that_is_not_finite_is_a_loss_that_is_not_finite(
    shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each step finds the leaves from z⁰."""
    poison(monkeypatch, 14)
    hierarchy = Hierarchy(levels=(12, 4), negatives=5, start_epoch=2, assign="step")
    with pytest.raises(ValueError, match=r"nan at step 14 \(epoch 3\).*last good checkpoint is from step 12"):
        pretrain(shapes, moco(), hierarchy, out=tmp_path / "run", **OPTIONS)
    assert len((tmp_path / "run" / "failed_batch.txt").read_text().splitlines()) == 16


class FakeWandb:
    """What `wandb.init` was called with, and how its runs ended."""

    def __init__(self) -> None:
        self.starts: list[dict[str, Any]] = []
        self.ends: list[int] = []
        self.logged = 0

    def init(self, **options: Any) -> Any:
        self.starts.append(options)
        return self

    def log(self, _: dict[str, Any], step: int) -> None:
        self.logged += step >= 0

    def finish(self, exit_code: int) -> None:
        self.ends.append(exit_code)


def test_a_folder_is_one_run_at_wandb(shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a failure and its continuation; a folder of the same name is another run."""
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    options: dict[str, Any] = OPTIONS | {"epochs": 2, "wandb": "project"}
    with monkeypatch.context() as broken:
        poison(broken, 8)
        with pytest.raises(ValueError, match="nan at step 8"):
            pretrain(shapes, moco(), None, out=tmp_path / "one" / "seed-0", **options)
    pretrain(shapes, moco(), None, out=tmp_path / "one" / "seed-0", **options)
    pretrain(shapes, moco(), None, out=tmp_path / "two" / "seed-0", **options)
    first, again, other = (start["id"] for start in fake.starts)
    assert first == again != other
    assert all(start["name"] == "seed-0" for start in fake.starts)
    assert fake.ends == [1, 0, 0]
    assert fake.logged


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, {"step": 1})
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(RuntimeError("PytorchStreamWriter failed")))
    with pytest.raises(OSError, match=r"cannot write .*last.ckpt.*is full.*last good checkpoint there is untouched"):
        save_checkpoint(path, {"step": 2})
    assert load_checkpoint(path)["step"] == 1
    assert len(list(tmp_path.iterdir())) == 1


class Harm:
    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


def test_a_foreign_checkpoint_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "last.ckpt"
    for content in (b"", b"hello", pickle.dumps(Harm())):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a checkpoint of hirl"):
            load_checkpoint(path)
    torch.save({"state": Harm()}, path)
    with pytest.raises(ValueError, match="is not a checkpoint of hirl"):
        load_checkpoint(path)
    assert not (tmp_path / "harmed").exists()
    torch.save({"model": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="its format is None"):
        load_checkpoint(path)
    save_checkpoint(path, {"step": 3, "joint": {"weight": torch.randn(1000)}})
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_checkpoint(path)


def test_two_processes_cannot_share_a_folder(shapes: Shapes, tmp_path: Path) -> None:
    code = "import sys; from hirl.run import Run\nwith Run(sys.argv[1]).locked(): pass"
    with Run(tmp_path / "run").locked():
        other = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, check=False)
        assert b"another process is training" in other.stderr
        with pytest.raises(ValueError, match="another process is training"):
            pretrain(shapes, moco(), None, out=tmp_path / "run", **OPTIONS)


def test_a_file_is_no_run_folder(shapes: Shapes, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ValueError, match="is a file, not a run folder"):
        pretrain(shapes, moco(), None, out=tmp_path / "run", **OPTIONS)


def test_a_folder_of_something_else_is_not_touched(shapes: Shapes, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and not a run folder"):
        pretrain(shapes, moco(), None, out=tmp_path, **OPTIONS)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_starting_from_given_weights(finished: Run, shapes: Shapes, tmp_path: Path) -> None:
    weights, _ = finished.encoder_weights()
    torch.save(weights, tmp_path / "plain.pt")
    options = OPTIONS | {"epochs": 1}
    for source in (finished.folder, finished.encoder_file, tmp_path / "plain.pt"):
        method = moco(lr=0.0, momentum=1.0)
        pretrain(shapes, method, None, out=tmp_path / f"from {Path(source).name}", encoder=str(source), **options)
        for twin in method.encoder_copies:
            loaded = twin.state_dict()
            assert all(
                torch.equal(loaded[name], weights[name])
                for name in weights
                if "running" not in name and "num_b" not in name
            )
    del weights["conv1.0.weight"]
    weights["extra.weight"] = torch.zeros(3)
    torch.save(weights, tmp_path / "partial.pt")
    with pytest.raises(ValueError, match=r"1 missing \(conv1\.0\.weight\); 1 unknown \(extra\.weight\); they must"):
        pretrain(shapes, moco(), None, out=tmp_path / "partial", encoder=str(tmp_path / "partial.pt"), **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 200}, "batch_size is 200, but must be at most the 100 images"),
        ({"batch_size": 0}, "batch_size is 0, but must be at least 2"),
        ({"epochs": 0}, "epochs is 0, but must be at least 1"),
        ({"seed": -1}, "seed is -1, but must be at least 0"),
        ({"accumulate": 3}, "accumulate is 3, but must divide the batch_size of 16"),
        ({"hierarchy": Hierarchy(levels=(200, 5))}, "200 clusters of only 100 rows"),
        ({"hierarchy": Hierarchy(start_epoch=3)}, "start_epoch is 3, but must be at most 2"),
        ({"method": moco(queue_length=50)}, "queue_length is 50.*48 fits"),
        ({"method": MoCoV2(backbone="resnet51")}, "not the name of a timm model.*resnet5"),
        ({"encoder": "nowhere"}, "no run folder or file 'nowhere'"),
        ({"data": "nowhere/"}, "neither a path nor the name"),
    ],
)
def test_what_cannot_be_trained_is_named(changes: dict[str, Any], message: str, shapes: Shapes, tmp_path: Path) -> None:
    arguments: dict[str, Any] = (
        {"data": shapes, "method": moco(), "hierarchy": HIERARCHY, "out": tmp_path / "run"} | OPTIONS | changes
    )
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(**arguments)


def test_unreadable_small_images_are_listed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Small images of equal size are read into memory at once; those that cannot be read must not go unnoticed."""
    (tmp_path / "photos").mkdir()
    for index in range(40):
        pixels = np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index:02}.png")
    (tmp_path / "photos" / "07.png").write_bytes(b"no picture")
    run = pretrain(tmp_path / "photos", moco(), None, out=tmp_path / "run", **OPTIONS)
    assert [line.split("\t")[0] for line in run.skipped_file.read_text().splitlines()] == ["7"]
    assert "1 of the 40 images of" in capsys.readouterr().out
    with pytest.warns(UserWarning, match=r"1 of the images of .*07\.png"):
        arrays = embed(run, quiet=True)
    assert np.flatnonzero(~arrays["readable"]).tolist() == [7]
    assert np.isnan(arrays["features"][7]).all()
