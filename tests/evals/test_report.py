"""What the terminal shows of an evaluation."""

from __future__ import annotations

from typing import Any

import pytest

from hirl.evals.base import Result, Row
from hirl.evals.report import result_tables

ROWS: list[Row] = [{"labels": "50 classes", "accuracy": 0.25, "lr": 3.0, "images": 1200}]


@pytest.mark.parametrize(
    ("chosen", "lines"),
    [
        ({}, []),
        ({"K at 50 classes": 20, "lr": 0.5}, ["task settled on: K at 50 classes 20, lr 0.5"]),
        ({"levels": [1200, 30], "milestones": (6.0, 8.5)}, ["task settled on: levels 1200 30, milestones 6 8.5"]),
        (
            {"rates": {"50 classes": {"lr": 3.0, "weight_decay": 1e-6}}, "held_out": 2500},
            ["task settled on: held_out 2500", "task settled on, rates at 50 classes: weight_decay 1e-06"],
        ),
        (
            {"1 %": {"optimiser": "sgd", "images": 1200}, "10 %": {"optimiser": "adamw", "images": 12}},
            ["task settled on, 1 %: optimiser sgd", "task settled on, 10 %: optimiser adamw"],
        ),
        ({"rates": {"50 classes": {"lr": 3.0}}}, []),
    ],
)
def test_settings_are_told_in_words_and_not_twice(
    chosen: dict[str, Any], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    result_tables("task", "network on images", Result(headline={"50 classes": 0.25}, rows=ROWS, chosen=chosen))
    shown = capsys.readouterr().out.splitlines()
    assert "task: 50 classes 25.00%" in shown
    assert [line for line in shown if "settled on" in line] == lines
