"""Results on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hirl.evals.base import Result, Row, Subject
from hirl.evals.result_tables import print_result
from hirl.terminal.figures import score, share

ROWS: list[Row] = [{"labels": "50 classes", "accuracy": share(0.25), "lr": 3.0, "images": 1200}]


@pytest.mark.parametrize(
    ("chosen", "lines"),
    [
        ({}, []),
        ({"K at 50 classes": 20, "lr": 0.5}, ["task chose: K at 50 classes 20, lr 0.5"]),
        ({"levels": [1200, 30], "milestones": (6.0, 8.5)}, ["task chose: levels 1200 30, milestones 6 8.5"]),
        (
            {"rates": {"50 classes": {"lr": 3.0, "weight_decay": 1e-6}}, "held_out": 2500},
            ["task chose: held_out 2500", "task chose, rates at 50 classes: weight_decay 1e-06"],
        ),
        (
            {"1 %": {"optimiser": "sgd", "images": 1200}, "10 %": {"optimiser": "adamw", "images": 12}},
            ["task chose, 1 %: optimiser sgd", "task chose, 10 %: optimiser adamw"],
        ),
        ({"rates": {"50 classes": {"lr": 3.0}}}, []),
    ],
)
def test_chosen_settings_are_shown_once(
    chosen: dict[str, Any],
    lines: list[str],
    coloured_subject: Callable[..., Subject],
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = Result(headline={"50 classes": share(0.25)}, rows=ROWS, chosen=chosen)
    print_result("task", coloured_subject(), result)
    shown = capsys.readouterr().out.splitlines()
    assert "task: 50 classes 25.00%" in shown
    assert [line for line in shown if "chose" in line] == lines


def test_the_first_line_has_the_encoder_the_images_and_their_size(
    coloured_subject: Callable[..., Subject], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result("task", coloured_subject(), Result(headline={}, rows=[]))
    assert capsys.readouterr().out.splitlines()[0] == "task: cnn on test, 16 × 16 pixels"


def test_figures_are_shown_by_their_kind_whatever_their_name(
    coloured_subject: Callable[..., Subject], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by words such as accuracy or classes in the name."""
    rows: list[Row] = [{"accuracy": score(0.25), "correlation": share(0.5), "classes": 12.5, "images": 1200}]
    print_result("task", coloured_subject(), Result(headline={"purity": score(0.25), "x": share(0.5)}, rows=rows))
    shown = capsys.readouterr().out
    assert shown.splitlines()[3].split() == ["0.250", "50.00%", "12.5", "1,200"]
    assert "task: purity 0.250; x 50.00%" in shown
