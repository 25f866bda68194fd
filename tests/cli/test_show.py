"""`hirl show`: a run's losses as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hirl import Run
from hirl.cli.main import main
from hirl.runs.folder import FORMAT, OPTIONS
from hirl.runs.metrics import LOSS_IMAGE, LOSS_SPD, metric_values


def line(epoch: int, image: float, **more: float) -> dict[str, Any]:
    """The report of an epoch."""
    return {"step": 10 * epoch, "epoch": epoch, "loss_image": image, **more}


def recent(step: int, image: float) -> dict[str, Any]:
    """A report within an epoch of 10 steps."""
    return {"step": step, "epoch": step / 10, "recent_loss_image": image, "lr": 0.1}


FIRST = [recent(2, 0.1), recent(10, 5.1)]
LATER = [line(1, 4.1), recent(15, 5.0), recent(20, 4.0), line(2, 4.5, loss_spd=0.9), line(3, 3.9, loss_spd=0.49)]


def show(lines: list[dict[str, Any]], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    folder.mkdir(exist_ok=True)
    options = dict.fromkeys(OPTIONS) | {"format": FORMAT, "epochs": 3}
    options["method"] = {"class_path": "hirl.methods.DINO", "init_args": {}}
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    for report in lines:
        Run(folder).report(report)
    assert main(["show", str(folder)]) == 0
    return capsys.readouterr().out


def test_losses_are_means_over_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = show([*FIRST, *LATER], tmp_path, capsys)
    assert "▃█▁ 4.1000 → 3.9000\n" in printed
    assert "█▁ 0.9000 → 0.4900\n" in printed  # from the first tree on
    assert "recent" not in printed  # which depends on when it was reported
    assert main(["runs", str(tmp_path.parent)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "3.9000" in line)
    assert "0.4900" in row


def test_the_first_epoch_is_shown_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "▁█ 0.1000 → 5.1000\n" in show(FIRST, tmp_path, capsys)


def test_figures_that_are_not_numbers_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line(1, 4.0), line(2, float("nan"), knn_val_level_0=float("nan")), line(3, float("inf"))]
    assert "▁×× 4.0000 → inf\n" in show(lines, tmp_path, capsys)
    assert "× NaN → NaN\n" in show([line(1, float("nan"))], tmp_path / "other", capsys)
    assert main(["runs", str(tmp_path)]) == 0
    assert "NaN" in capsys.readouterr().out


def test_a_run_without_reports_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = show([], tmp_path, capsys)
    assert "unfinished, epoch 0 of 3" in printed
    assert "no figures yet\n" in printed
    assert "last figures" not in printed
    assert "files: none of a trained state yet\n" in printed
    assert main(["show", str(tmp_path), "--page"]) == 0


def test_course() -> None:
    assert metric_values([*FIRST, *LATER], LOSS_IMAGE) == [4.1, 4.5, 3.9]
    assert metric_values(FIRST, LOSS_SPD) == metric_values([], LOSS_IMAGE) == []
