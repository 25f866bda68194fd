"""`hirl show`: a run's losses as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hirl import Run
from hirl.cli.main import main
from hirl.cli.show import loss_course
from hirl.runs.folder import OPTIONS


def line(step: int, image: float, spd: float = 0.0) -> dict[str, Any]:
    """A report of a run with 10 steps per epoch."""
    return {"step": step, "epoch": step / 10, "loss_image": image, "loss_spd": spd}


LINES = [line(2, 0.1), line(10, 5.1), line(15, 5.0), line(20, 4.0, 0.9), line(29, 4.0, 0.5), line(30, 3.0, 0.4)]


def test_losses_begin_and_end_with_the_mean_of_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = dict.fromkeys(OPTIONS) | {"epochs": 3, "method": {"class_path": "hirl.methods.DINO", "init_args": {}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(options))
    for report in LINES:
        Run(tmp_path).report(report)
    assert main(["show", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert " 4.1000 → 3.9000\n" in printed  # (2 · 0.1 + 8 · 5.1) / 10, and (9 · 4 + 3) / 10
    assert " 0.9000 → 0.4900\n" in printed  # from the first tree on


def test_the_course_of_a_loss() -> None:
    course = loss_course(LINES, "loss_image")
    assert course is not None
    assert course.values == pytest.approx([4.1, 5.0, 4.0, 4.0, 3.0])
    early = loss_course(LINES[:2], "loss_image")  # within the first epoch there is nothing else to show
    assert early is not None
    assert early.values == [0.1, 5.1]
    assert loss_course(LINES[:3], "loss_spd") is None
    assert loss_course([], "loss_image") is None
