"""Built-in methods reject numbers out of range; the arguments of a user's own method are not checked."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hirl import methods
from hirl.methods.argument_ranges import ABOVE_0, AT_LEAST, FRACTIONS, check_ranges
from hirl.methods.base import Plan

from ..small_methods import NAMES

NUMBERS = [
    (name, argument)
    for name in NAMES
    for argument, parameter in inspect.signature(getattr(methods, name)).parameters.items()
    if parameter.annotation in ("int", "float", "int | None", "float | None")
]


def test_the_table_names_arguments_that_exist() -> None:
    assert len(NUMBERS) > 70
    assert AT_LEAST.keys() | ABOVE_0 | FRACTIONS <= {argument for _, argument in NUMBERS}


@pytest.mark.parametrize(("name", "argument"), NUMBERS)
def test_a_negative_number_is_refused_by_name(
    name: str, argument: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    arguments = small[name] | {argument: -1}
    try:
        run.built(name, arguments, plan)
        answer = "no error"
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    assert re.match(rf"ValueError: {argument} is -1.*, but must ", answer), (
        f"{name}({argument}=-1) gives {answer!r}: add {argument!r} to a range in src/hirl/methods/argument_ranges.py "
        "and call check_ranges(self) first in build"
    )


@pytest.mark.parametrize(("name", "argument"), [pair for pair in NUMBERS if pair[1] in ("lr", "momentum")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_finite_number_is_refused(
    name: str, argument: str, value: float, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    with pytest.raises(ValueError, match=f"{argument} is {value}, but must be a finite number"):
        run.built(name, small[name] | {argument: value}, plan)


@pytest.mark.parametrize("value", ["0.1", True, [0.1, 0.2]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^lr is .*, but must be a number$"):
        check_ranges(methods.DINO(lr=value))


@pytest.mark.parametrize("value", ["cosine", True, (512, 256), -1, float("nan")])
@pytest.mark.parametrize("argument", ["dim", "temperature", "lr"])
def test_arguments_of_a_users_own_method_are_not_checked(argument: str, value: Any) -> None:
    spec = importlib.util.spec_from_file_location("simclr", Path(__file__).parents[2] / "examples" / "simclr.py")
    assert spec is not None
    assert spec.loader is not None
    simclr = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simclr)
    check_ranges(simclr.SimCLR(**{argument: value}))


def test_what_a_users_class_adds_to_one_of_ours_is_not_judged_but_the_rest_is() -> None:
    class Own(methods.SimSiam):
        def __init__(self, *, temperature: str = "cosine", **of_simsiam: Any) -> None:
            super().__init__(**of_simsiam)
            self.temperature = temperature

    check_ranges(Own())
    with pytest.raises(ValueError, match=r"^lr is -1, but must be at least 0$"):
        check_ranges(Own(lr=-1))


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_at_the_edge_is_taken(
    name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    edges = {"lr": 0.0, "weight_decay": 0.0, "warmup_epochs": 0.0, "momentum": 1.0, "frozen_epochs": 0.0}
    edges |= {"local_crops": 0, "sgd_momentum": 0.0, "prototypes": 2, "dim": 1}
    taken = inspect.signature(getattr(methods, name)).parameters
    run.built(name, small[name] | {argument: value for argument, value in edges.items() if argument in taken}, plan)
