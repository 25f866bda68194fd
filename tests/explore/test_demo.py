"""The demo in a small form: both arms from one stage one, a table of what was measured, a tree page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hirl.cli.main import main
from hirl.explore.demo import how_to_open
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint


def test_the_demo_trains_compares_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    line = ["demo", "--images", "128", "--epochs", "2"]
    assert main(line) == 0
    printed = capsys.readouterr().out
    for row in ("KNN, 48 classes", "clustering, AMI, 12 classes", "tree, AMI, 4 classes", "seconds of training"):
        assert row in printed
    assert "base" in printed
    assert "pixels" in printed
    assert (tmp_path / "demo" / "tree" / "index.html").is_file()
    assert len(list((tmp_path / "demo" / "pictures" / "train").rglob("*.png"))) == 128
    base, hirl = Run("demo/shapes-base"), Run("demo/shapes-hirl")
    assert base.finished
    assert hirl.finished
    assert len(hirl.tree.leaves) == 128
    # Stage one is shared: HIRL's first reports are the baseline's.
    fork = load_checkpoint(next(base.checkpoints_folder.glob("fork-*.ckpt")))
    steps = [line["step"] for line in hirl.metrics() if "loss_image" in line]
    assert min(steps) <= fork["step"] < max(steps)
    assert not all(
        torch.equal(weight, hirl.encoder_weights()[0][name]) for name, weight in base.encoder_weights()[0].items()
    )

    assert main(["demo", "--images", "10"]) == 2
    assert "images is 10, but must be at least 128" in capsys.readouterr().err


def test_it_says_where_the_page_is(tmp_path: Path) -> None:
    page = tmp_path / "a page"
    assert how_to_open(page, {}).endswith((page / "index.html").as_uri())
    remote = how_to_open(page, {"SSH_CONNECTION": "1 2 3 4"})
    assert str(page / "index.html") in remote
    assert f"'{page}' ." in remote
    assert "file://" not in remote


def test_pictures_of_a_larger_demo_are_not_taken_for_fewer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pictures" / "train").mkdir(parents=True)
    for number in range(200):
        (tmp_path / "pictures" / "train" / f"{number}.png").touch()
    assert main(["demo", "--images", "128", "--out", str(tmp_path)]) == 2
    assert "images is 128, but" in capsys.readouterr().err
