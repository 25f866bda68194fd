"""No method takes a number that means nothing: every numeric argument of every method has a least value."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

from hirl import methods
from hirl.methods.argument_ranges import ABOVE_0, AT_LEAST, SHARES
from hirl.methods.base import Plan

NAMES = [name for name in methods.__all__ if name != "Method"]
NUMBERS = [
    (name, argument)
    for name in NAMES
    for argument, parameter in inspect.signature(getattr(methods, name)).parameters.items()
    if parameter.annotation in ("int", "float", "int | None", "float | None")
]


def test_the_table_names_arguments_that_exist() -> None:
    assert len(NUMBERS) > 70
    assert AT_LEAST.keys() | ABOVE_0 | SHARES <= {argument for _, argument in NUMBERS}


@pytest.mark.parametrize(("name", "argument"), NUMBERS)
def test_a_negative_number_is_refused_by_name(
    name: str, argument: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    with pytest.raises(ValueError, match=rf"^{argument} is -1.*, but must "):
        run.built(name, small[name] | {argument: -1}, plan)


@pytest.mark.parametrize(("name", "argument"), [pair for pair in NUMBERS if pair[1] in ("lr", "momentum")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_finite_number_is_refused(
    name: str, argument: str, value: float, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    with pytest.raises(ValueError, match=f"{argument} is {value}, but must be a finite number"):
        run.built(name, small[name] | {argument: value}, plan)


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_at_the_edge_is_taken(
    name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    edges = {"lr": 0.0, "weight_decay": 0.0, "warmup_epochs": 0.0, "momentum": 1.0, "frozen_epochs": 0.0}
    edges |= {"local_crops": 0, "sgd_momentum": 0.0, "prototypes": 2, "dim": 1}
    taken = inspect.signature(getattr(methods, name)).parameters
    run.built(name, small[name] | {argument: value for argument, value in edges.items() if argument in taken}, plan)
