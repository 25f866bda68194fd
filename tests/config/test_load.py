"""Plain options made into arguments, for functions with nested classes, and the messages for wrong ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from hirl.config.parser import load


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


@dataclass(frozen=True)
class Square(Shape):
    side: float = 1.0

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True)
class Frame(Shape):
    inner: Shape
    width: int = 1
    colours: tuple[int, ...] | None = None

    def area(self) -> float:
        return self.inner.area() + self.width


@dataclass(frozen=True)
class Paper:
    size: int = 4
    stamp: Shape = Square(2.0)


def draw(
    shape: Shape,
    paper: Paper | None = Paper(size=5),
    *,
    times: int = 1,
    mode: Literal["fast", "slow"] = "fast",
    labels: dict[str, Any] | None = None,
) -> None:
    """Draw."""
    _ = shape, paper, times, mode, labels


def test_options_that_are_not_given_are_left_to_the_function() -> None:
    assert load(draw, {"shape": "Square"}) == {"shape": Square(), "paper": Paper(size=5)}
    given = load(draw, {"shape": {"class_path": "Square", "init_args": {"side": 3}}, "times": 2, "paper": None})
    assert given == {"shape": Square(3.0), "times": 2, "paper": None}


def test_classes_stand_within_classes() -> None:
    inner = {"class_path": "Frame", "init_args": {"inner": {"class_path": "Square", "init_args": {"side": 7}}}}
    outer = {"class_path": "Frame", "init_args": {"inner": inner, "width": 3, "colours": [1, 2]}}
    assert load(draw, {"shape": outer})["shape"] == Frame(Frame(Square(7.0)), 3, (1, 2))


def test_a_default_object_gives_what_is_not_said() -> None:
    assert load(draw, {"shape": "Square", "paper": {"stamp": {"side": 9}}})["paper"] == Paper(5, Square(9.0))
    assert load(draw, {"shape": "Square", "paper": {}})["paper"] == Paper(5, Square(2.0))
    frame = {"class_path": "Frame", "init_args": {"inner": "Square"}}
    assert load(draw, {"shape": "Square", "paper": {"stamp": frame}})["paper"] == Paper(5, Frame(Square()))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "'a.yaml': the option shape is missing: choose one of Frame, Square"),
        ({"shape": None}, "shape is null in 'a.yaml', but must be a Shape"),
        ({"shape": 3}, "shape is 3 in 'a.yaml', but must be a class with its class_path and init_args"),
        ({"shape": {"side": 3}}, "'a.yaml' gives shape no class_path: choose one of Frame, Square"),
        ({"shape": {"class_path": 3}}, "in 'a.yaml', but its class_path must be text"),
        ({"shape": {"class_path": "Square", "side": 3}}, "has class_path and init_args, but also 'side'"),
        ({"shape": "Circle"}, "there is no shape 'Circle': choose one of Frame, Square"),
        ({"shape": "Frame"}, "'a.yaml': the option shape.inner is missing: choose one of Frame, Square"),
        ({"shape": "Square", "time": 3}, "'a.yaml': there is no option time: did you mean times?"),
        ({"shape": "Square", "side": 3}, "'a.yaml': there is no option side: did you mean shape.side"),
        (
            {"shape": "Square", "paper": {"sizes": 3}},
            "'a.yaml': there is no option paper.sizes: did you mean paper.size",
        ),
        ({"shape": "Square", "times": "many"}, "'a.yaml': times is many, but must be a whole number"),
        ({"shape": "Square", "times": 2.5}, "'a.yaml': times is 2.5, but must be a whole number"),
        ({"shape": "Square", "times": None}, "'a.yaml': times is null, but must be a whole number"),
        ({"shape": "Square", "mode": "quick"}, "'a.yaml': mode is quick, but must be one of fast, slow"),
        (
            {"shape": "Square", "labels": 3},
            "'a.yaml': labels is 3, but must be a mapping such as {name: value}, or null",
        ),
        (
            {"shape": {"class_path": "Square", "init_args": {"side": "long"}}},
            "'a.yaml': shape.side is long, but must be a number",
        ),
        (
            {"shape": {"class_path": "Frame", "init_args": {"inner": "Square", "colours": [1, "red"]}}},
            "'a.yaml': shape.colours is [1, 'red'], but must be a list of whole numbers, or null",
        ),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_file(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the text is compared below)
        load(draw, options, source="a.yaml")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
