"""Figures know their kind and are shown by it."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from hirl.terminal.figures import Figure, Kind, format_cell, format_figure, kind_of, kinds, score, share, with_kinds


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        (share(0.256), {}, "25.60%"),
        (share(0.256), {"unit": False}, "25.60"),
        (share(-0.0012), {"sign": True, "unit": False}, "-0.12"),
        (share(0.0012), {"sign": True, "unit": False}, "+0.12"),
        (score(0.4567), {}, "0.457"),
        (score(0.4567), {"sign": True}, "+0.457"),
        (Figure(0.2564, Kind.AVERAGE_PRECISION), {}, "25.6"),
        (Figure(1234, Kind.COUNT), {}, "1,234"),
        (Figure(12.34, Kind.SECONDS), {}, "12.3 s"),
        (Figure(12.34, Kind.SECONDS), {"unit": False}, "12.3"),
        (1e-6, {}, "1e-06"),
        (30.0, {}, "30"),
        (1200, {}, "1,200"),
        (0.25, {"kind": Kind.SHARE}, "25.00%"),
    ],
)
def test_a_figure_is_shown_by_its_kind(value: float, options: dict[str, Any], text: str) -> None:
    assert format_figure(value, **options) == text


def test_other_cells() -> None:
    assert [format_cell(value) for value in (None, True, False, "12 classes", share(1.0), 7)] == [
        "",
        "✓",
        "",
        "12 classes",
        "100.00%",
        "7",
    ]


def test_a_figure_is_a_number() -> None:
    figure = share(0.5)
    assert figure == 0.5
    assert kind_of(figure * 2) is Kind.NUMBER
    assert json.dumps({"x": figure}) == '{"x": 0.5}'
    for twin in (copy.deepcopy(figure), pickle.loads(pickle.dumps(figure))):
        assert twin == 0.5
        assert kind_of(twin) is Kind.SHARE


def test_kinds_go_to_a_file_and_back() -> None:
    row = {"labels": "4 classes", "accuracy": share(0.5), "tau": score(0.1), "lr": 0.3, "best": None}
    written = json.loads(json.dumps({"row": row, "kinds": kinds(row)}))
    assert written["kinds"] == {"accuracy": "share", "tau": "score"}
    found = with_kinds(written["row"], written["kinds"])
    assert found == row
    assert [kind_of(found[name]) for name in ("accuracy", "tau", "lr")] == [Kind.SHARE, Kind.SCORE, Kind.NUMBER]
    assert with_kinds({"accuracy": None}, {"accuracy": "share"}) == {"accuracy": None}
