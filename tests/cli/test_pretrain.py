"""`hirl pretrain`, `show` and `runs` through the command's entry point."""

from __future__ import annotations

import inspect
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hirl.cli.main import main
from hirl.run import Run
from hirl.train.pretrain import pretrain

from ..forked import Forked
from ..small_methods import CHOICES

TINY: dict[str, Any] = {
    "method": {
        "class_path": "hirl.methods.MoCoV2",
        "init_args": {
            "backbone": "resnet10t",
            "backbone_args": {"channels": [8, 8, 16, 16]},
            "dim": 16,
            "queue_length": 200,
            "bn_splits": 2,
            "lr": 0.001,
        },
    },
    "hierarchy": {"levels": [12, 4], "negatives": 5, "start_epoch": 1},
    "epochs": 2,
    "batch_size": 200,
    "accelerator": "cpu",
    "knn_every": 0,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A .npz of random pictures, quicker to open than ten thousand drawn ones."""
    import numpy as np

    path = tmp_path / "images.npz"
    np.savez(path, images=np.random.default_rng(0).integers(0, 256, (600, 16, 16, 3), dtype=np.uint8))
    return path


def test_a_run_is_made_continued_and_shown(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["pretrain", str(images), "--config", str(config), "--out", str(tmp_path / "runs" / "a")]
    assert main([*args, "--hierarchy.levels", "10", "3"]) == 0
    assert Run(tmp_path / "runs" / "a").tree.levels == (10, 3)
    assert main([*args, "--hierarchy.levels", "10", "3"]) == 0
    assert "is finished" in capsys.readouterr().out
    assert main(args) == 2
    assert "hierarchy.levels: [10, 3] → [12, 4]" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "runs" / "a")]) == 0
    page = capsys.readouterr().out
    assert "MoCoV2, HIRL, finished, epoch 2 of 2" in page
    assert "loss_spd" in page
    assert main(["runs", str(tmp_path / "runs")]) == 0
    listed = capsys.readouterr().out
    assert "finished" in listed
    assert "│ a " in listed


def test_a_batch_that_leaves_out_many_images_is_remarked_on(
    config: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["pretrain", str(images), "--config", str(config), "--hierarchy", "null", "--epochs", "1"]
    assert main([*args, "--batch_size", "320", "--method.queue_length", "320", "--out", str(tmp_path / "large")]) == 0
    assert "each epoch leaves out 280 images" in capsys.readouterr().out
    assert main([*args, "--out", str(tmp_path / "small")]) == 0
    assert "leaves out" not in capsys.readouterr().out


def test_a_baseline_comes_back_as_a_baseline(config: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "base"
    assert main(["pretrain", str(images), "--config", str(config), "--hierarchy", "null", "--out", str(out)]) == 0
    assert Run(out).config["hierarchy"] is None
    again = [
        "pretrain",
        "--config",
        str(Run(out).config_file),
        "--accelerator",
        "cpu",
        "--out",
        str(tmp_path / "again"),
    ]
    assert main(again) == 0
    assert Run(tmp_path / "again").config == Run(out).config
    one, other = (torch.load(Run(place).checkpoint_file, weights_only=True) for place in (out, tmp_path / "again"))
    assert all(torch.equal(one["joint"][name], other["joint"][name]) for name in one["joint"])


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    documented = [line.partition(":")[0].strip() for line in (inspect.getdoc(pretrain) or "").splitlines()]
    assert set(inspect.signature(pretrain).parameters) <= set(documented)
    for args, expected in (
        (["--help"], "Images per step, over all"),
        (["--hierarchy.help"], "negative paths per image"),
    ):
        with pytest.raises(SystemExit):
            main(["pretrain", *args])
        assert expected in " ".join(capsys.readouterr().out.split())


def test_asked_to_stop_it_saves_and_the_same_command_continues(config: Path, images: Path, tmp_path: Path) -> None:
    """On as many processes as before, or on another number."""
    args = ["pretrain", str(images), "--config", str(config), "--epochs", "400", "--out", str(tmp_path / "run")]
    stopped = 0
    for devices in ("1", "1", "2", "1"):
        process = Forked("hirl.cli.main", *args, "--devices", devices)
        wait_for_steps(tmp_path / "run" / "metrics.jsonl", after=stopped)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 130, process.errors
        assert "the same command continues" in process.output
        assert stopped == 0 or f"continues at step {stopped} of 1200" in process.output
        before, stopped = stopped, torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["step"]
        assert before < stopped < 1200


def wait_for_steps(metrics: Path, *, after: int) -> None:
    """Until a run has reported a step after the given one."""
    for _ in range(900):
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        if lines and lines[-1].endswith("}") and json.loads(lines[-1])["step"] > after:
            return
        time.sleep(0.1)
    raise AssertionError("the run reports no steps")


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no data": (["--method", "MoCoV2"], "pretrain needs the images"),
    "an unknown method": (["{images}", "--method", "MoCo"], CHOICES),
    "a method from nowhere": (["{images}", "--method", "no.such.Method"], "no.such"),
    "an unknown argument of the method": (
        ["{images}", "--method", "MoCoV2", "--method.queue", "3"],
        "there is no option --method.queue",
    ),
    "epochs in words": (["{images}", "--config", "{config}", "--epochs", "many"], "epochs"),
    "no epochs": (["{images}", "--config", "{config}", "--epochs", "0"], "epochs is 0, but must be at least 1"),
    "an argument of no method": (
        ["{images}", "--method.backbone", "resnet18"],
        "since --method is null: give --method",
    ),
    "no device": (["{images}", "--config", "{config}", "--devices", "0"], "devices is 0, but must be at least 1"),
    "a batch of one": (["{images}", "--config", "{config}", "--batch_size", "1"], "is 1, but must be at least 2"),
    "one pixel": (["{images}", "--config", "{config}", "--image_size", "1"], "image_size is 1, but must be at least 8"),
    "a size without patches": (
        ["{images}", "--method", "DINO", "--image_size", "50", "--accelerator", "cpu"],
        "image_size is 50, but must be a multiple of 16 for the network that is chosen for DINO: use 48 or 64",
    ),
    "a negative seed": (["{images}", "--config", "{config}", "--seed", "-1"], "seed is -1, but must be at least 0"),
    "a batch too large": (["{images}", "--config", "{config}", "--batch_size", "601"], "at most the 600 images"),
    "a batch the queue does not fit": (["{images}", "--config", "{config}", "--batch_size", "60"], "queue_length"),
    "parts that do not divide": (
        ["{images}", "--config", "{config}", "--accumulate", "3"],
        "accumulate is 3, but must",
    ),
    "an unknown precision": (
        ["{images}", "--config", "{config}", "--precision", "8"],
        "--precision is 8, but must be one of 32-true",
    ),
    "an unknown accelerator": (["{images}", "--config", "{config}", "--accelerator", "abacus"], "accelerator"),
    "levels that grow": (["{images}", "--config", "{config}", "--hierarchy.levels", "3", "9"], "must decrease"),
    "too many leaves": (["{images}", "--config", "{config}", "--hierarchy.levels", "601"], "only 600 rows"),
    "a tree that never comes": (
        ["{images}", "--config", "{config}", "--hierarchy.start_epoch", "2"],
        "start_epoch is 2, but must be at most",
    ),
    "a tree before the first epoch": (
        ["{images}", "--config", "{config}", "--hierarchy.start_epoch", "-1"],
        "start_epoch",
    ),
    "unknown features": (["{images}", "--config", "{config}", "--hierarchy.features", "dreams"], "features"),
    "a missing config": (["{images}", "--config", "nowhere.yaml"], "neither a file nor a recipe 'nowhere.yaml'"),
    "a config of prose": (["{images}", "--config", "{prose}"], "is not a YAML file of options"),
    "a config that names code": (["{images}", "--config", "{code}"], "which is not part of hirl"),
    "an unknown key in a config": (
        ["{images}", "--config", "{typo}"],
        "there is no option epoch: did you mean epochs?",
    ),
    "missing images": (["nowhere/", "--config", "{config}"], "neither a path nor the name"),
    "an empty folder": (["{empty}", "--config", "{config}"], "no image in the folder"),
    "a text file": (["{prose}", "--config", "{config}"], "is not a set of images"),
    "an unknown split": (["{images}", "--config", "{config}", "--split", "val"], "split"),
    "four channels": (["{images}", "--config", "{config}", "--channels", "4"], "channels"),
    "an unknown backbone": (
        ["{images}", "--config", "{config}", "--method.backbone", "resnet5", "--method.backbone_args", "null"],
        "timm model",
    ),
    "weights from nowhere": (["{images}", "--config", "{config}", "--encoder", "nowhere"], "no run folder"),
    "weights of prose": (["{images}", "--config", "{config}", "--encoder", "{prose}"], "not a file of plain weights"),
    "a file for a folder": (["{images}", "--config", "{config}", "--out", "{prose}"], "is a file, not a run folder"),
    "somebody's folder": (["{images}", "--config", "{config}", "--out", "{full}"], "is not empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str,
    config: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args, expected = MISTAKES[mistake]
    named = {"config": config, "images": images, "empty": tmp_path / "empty", "full": tmp_path / "full"}
    named |= {name: tmp_path / f"{name}.yaml" for name in ("prose", "code", "typo")}
    named["empty"].mkdir()
    named["full"].mkdir()
    (named["full"] / "thesis.txt").write_text("years of work")
    named["prose"].write_text("not: [a mapping")
    named["code"].write_text(yaml.safe_dump(TINY | {"method": {"class_path": "os.path.Method", "init_args": {}}}))
    named["typo"].write_text(yaml.safe_dump(TINY | {"epoch": 3}))
    before = sorted(file for file in tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in args else ["--out", str(tmp_path / "run")]

    code = main(["pretrain", *(arg.format(**named) for arg in args), *out])

    shown = capsys.readouterr()
    assert code == 2, shown.out
    sentence = shown.err.strip().splitlines()
    assert len(sentence) == 1, shown.err
    assert sentence[0].startswith("hirl: ")
    assert expected in sentence[0]
    after = [file for file in tmp_path.rglob("*") if not file.is_relative_to(tmp_path / "run")]
    assert sorted(after) == before
    assert not list((tmp_path / "run").glob("*.ckpt"))
