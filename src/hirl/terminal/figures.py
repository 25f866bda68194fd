"""Figures and how they are shown: by their kind, never by their name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import isnan
from typing import Any


class Kind(str, Enum):
    """What a figure is. Shares and average precisions are stored as fractions of 1."""

    SHARE = "share"  # accuracy, purity, precision, NMI, AMI: 0.256 is shown as 25.60%
    AVERAGE_PRECISION = "average precision"  # of detection: 0.256 is shown as 25.6, as in COCO's tables
    SCORE = "score"  # a correlation: 0.256
    COUNT = "count"  # 1,234
    SECONDS = "seconds"  # 12.3 s
    NUMBER = "number"  # anything else, such as a learning rate: 1e-06


class Figure(float):
    """A number that knows its kind. In calculations and in JSON it is a plain number."""

    kind: Kind

    def __new__(cls, value: float, kind: Kind = Kind.NUMBER) -> Figure:
        figure = super().__new__(cls, value)
        figure.kind = kind
        return figure

    def __getnewargs__(self) -> tuple[float, Kind]:  # type: ignore[override]  # for copies and other processes
        return float(self), self.kind


def share(value: float) -> Figure:
    """A fraction of 1, shown in per cent."""
    return Figure(value, Kind.SHARE)


def score(value: float) -> Figure:
    """A value such as a correlation, which is not a fraction of anything."""
    return Figure(value, Kind.SCORE)


def kind_of(value: float) -> Kind:
    """A figure's own kind. A plain integer is a count, any other plain number just a number."""
    if isinstance(value, Figure):
        return value.kind
    return Kind.COUNT if isinstance(value, int) else Kind.NUMBER


def per_cent(value: float, *, digits: int = 2, sign: bool = False, unit: bool = True) -> str:
    """A fraction in per cent: 0.256 → 25.60%."""
    return f"{100 * value:{'+' if sign else ''}.{digits}f}{'%' if unit else ''}"


def four_digits(value: float) -> str:
    """A loss: 3.5241, or NaN."""
    return "NaN" if isnan(value) else f"{value:.4f}"


def format_figure(value: float, kind: Kind | None = None, *, sign: bool = False, unit: bool = True) -> str:
    """The value as text, by its own kind unless one is given; `unit=False` for columns that name the unit."""
    if isnan(value):
        return "NaN"
    plus = "+" if sign else ""
    kind = kind_of(value) if kind is None else kind
    if kind is Kind.SHARE:
        return per_cent(value, sign=sign, unit=unit)
    if kind is Kind.AVERAGE_PRECISION:
        return per_cent(value, digits=1, sign=sign, unit=False)
    if kind is Kind.COUNT:
        return f"{value:{plus},.0f}"
    if kind is Kind.SECONDS:
        return f"{value:{plus}.1f}{' s' if unit else ''}"
    return f"{value:{plus}.3f}" if kind is Kind.SCORE else f"{value:{plus}.4g}"


def format_cell(value: Any) -> str:
    """A table's cell as text: a figure, a mark, text or nothing."""
    if value is None or isinstance(value, bool):
        return "✓" if value else ""
    return format_figure(value) if isinstance(value, int | float) else str(value)


def kinds(values: Mapping[str, Any]) -> dict[str, str]:
    """The kind of every value that is a figure, by name, for a file."""
    return {name: value.kind.value for name, value in values.items() if isinstance(value, Figure)}


def with_kinds(values: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """The values from a file, as figures where `kinds` names their kind."""
    return {
        name: Figure(value, Kind(kinds[name])) if name in kinds and isinstance(value, int | float) else value
        for name, value in values.items()
    }
