"""Run folders written by earlier versions still open, and an unfinished one continues.

format_1: before results carried their protocol and checkpoints their plan. Made with the images of `picture_files`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hirl.cli.main import main
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.folder import Run
from hirl.runs.representations import load_trained

FORMAT_1 = Path(__file__).parent / "format_1"


@pytest.fixture
def old(picture_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the old runs beside their images, as the current directory."""
    shutil.copytree(FORMAT_1, tmp_path / "old")
    shutil.copy(picture_files, tmp_path / "old" / "shapes.npz")
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "old"


def test_show_lists_figures_and_results(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "finished"]) == 0
    shown = capsys.readouterr().out
    assert "MoCoV2, HIRL, finished, epoch 2 of 2" in shown
    assert "knn.json" in shown
    assert "48 classes" in shown
    assert "%" in shown.split("knn.json")[1].splitlines()[0]  # a share, though the file does not name its kind
    assert main(["show", "unfinished"]) == 0
    assert "DINO, HIRL, unfinished" in capsys.readouterr().out
    assert main(["runs", str(old)]) == 0
    listed = capsys.readouterr().out
    assert "finished" in listed
    assert "unfinished" in listed


def test_evaluation_stores_its_result_beside_the_old_one(old: Path) -> None:
    before = (old / "finished" / "results" / "knn.json").read_bytes()
    assert main(["evaluate", "finished", "knn", "--knn.ks", "10", "20", "--device", "cpu", "--reuse", "true"]) == 0
    names = [file.name for file in (old / "finished" / "results").iterdir()]
    assert sum(name.startswith("knn-") for name in names) == 1
    assert (old / "finished" / "results" / "knn.json").read_bytes() == before
    (new,) = (old / "finished" / "results").glob("knn-*.json")
    assert json.loads(new.read_text())["headline"] == json.loads(before)["headline"]


def test_embedding_has_every_representation(old: Path) -> None:
    assert main(["embed", "finished", "--out", "z.npz", "--device", "cpu"]) == 0
    with np.load(old / "z.npz") as arrays:
        assert arrays["features"].shape == (144, 8)
        assert [arrays[name].shape for name in ("z0", "z1", "z2")] == [(144, 8)] * 3
        assert arrays["path"].shape == (144, 2)


@pytest.mark.parametrize(("name", "steps"), [("finished", 3), ("unfinished", 3)])
def test_the_plan_of_a_checkpoint_without_one(name: str, steps: int, old: Path) -> None:
    """144 images in batches of 48, whichever step the checkpoint is of."""
    trained = load_trained(Run(old / name))
    assert trained.method.plan.steps_per_epoch == steps
    assert trained.tree is not None
    assert trained.tree.levels == (24, 6)


def test_an_unfinished_run_continues_to_its_end(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(old / "unfinished")
    assert 0 < load_checkpoint(run.checkpoint_file)["step"] < 9
    line = ["pretrain", "--config", "unfinished/config.yaml", "--out", "unfinished", "--accelerator", "cpu"]
    assert main([*line, "--devices", "1"]) == 0
    assert run.finished
    assert load_checkpoint(run.checkpoint_file)["step"] == 9
    assert run.encoder(torch.zeros(2, 3, 16, 16)).shape == (2, 8)
    capsys.readouterr()
    assert main([*line, "--devices", "1"]) == 0
    assert "is finished" in capsys.readouterr().out
