"""docs/methods.md beside the paper: every value in it is that of the recipes, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hirl
from hirl.methods.base import Plan

from ..small_methods import METHODS, title

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "methods.md").read_text(encoding="utf-8")
RECIPES = {title(name): kind.__module__.rpartition(".")[2] for name, kind in METHODS.items()}
IMAGES = 1_281_167
ABSENT = "–"


def table(heading: str) -> list[list[str]]:
    """The rows of the table that begins with a heading, without the heading."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


COMPARED = table("| setting | paper or official code | ours |")
VALUES = table("| | MoCo v2 | ")
TASKS = {match for file in TESTS.rglob("test_*.py") for match in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}


@pytest.mark.parametrize("row", COMPARED[1:], ids=lambda row: row[0])
def test_each_line_names_a_test_that_exists(row: list[str]) -> None:
    assert len(row) == len(COMPARED[0])
    assert all(row)
    named = re.findall(r"`(\w+)`", row[-1])
    assert named
    assert set(named) <= TASKS


def values_of(name: str) -> dict[str, Any]:
    """The settings of a recipe by the names that the page has for them."""
    options = hirl.recipe(f"imagenet/{name}")
    method, hierarchy = options["method"], options["hierarchy"]
    plan = Plan(options["epochs"], IMAGES // options["batch_size"], options["batch_size"], options["image_size"])
    method.plan = plan
    first, last = method.rates(0), method.rates(plan.steps)
    optimiser = method.optimiser([{"params": [torch.nn.Parameter(torch.zeros(2))]}])
    resolved = hierarchy.resolve(IMAGES, plan.epochs)
    return {
        **{name: options[name] for name in ("epochs", "batch_size")},
        **{name: getattr(resolved, name) for name in ("levels", "negatives", "head_layers", "start_epoch")},
        **method.arguments,
        "optimiser": type(optimiser).__name__,
        "learning rate, first step": first.lr,
        "learning rate, peak": method.peak_lr,
        "learning rate, end": last.lr,
        "weight decay, first step": first.weight_decay,
        "weight decay, end": last.weight_decay,
        "sizes of views": [view.size for view in method.views(224)],
    }


@pytest.mark.parametrize("column", VALUES[0][1:])
def test_each_value_is_that_of_the_recipe(column: str) -> None:
    values, place = values_of(RECIPES[column]), VALUES[0].index(column)
    assert len(VALUES) > 20
    for row in VALUES[1:]:
        names, cell = row[0].replace("`", "").split(" or "), row[place]
        found = [values[name] for name in names if name in values]
        if cell == ABSENT:
            assert not found, row[0]
            continue
        (value,) = found
        if isinstance(value, str):
            assert cell == value, row[0]
        else:
            numbers = value if isinstance(value, list | tuple) else [value]
            assert [float(part) for part in cell.split()] == pytest.approx(list(numbers), abs=1e-12), row[0]
