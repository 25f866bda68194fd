"""Types of options: the rule of each in plain English, and values from YAML or the command line converted to it."""

from __future__ import annotations

import collections.abc
import os
import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml


class Bound(NamedTuple):
    """Lower bound of a number, inclusive or exclusive."""

    least: float
    excluded: bool = False

    def allows(self, number: float) -> bool:
        return number > self.least if self.excluded else number >= self.least

    def __str__(self) -> str:
        return f"above {self.least}" if self.excluded else f"of at least {self.least}"


PositiveInt = Annotated[int, Bound(1)]
NonNegativeInt = Annotated[int, Bound(0)]
PositiveFloat = Annotated[float, Bound(0, excluded=True)]

RULES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    os.PathLike: "a path",
    Path: "a path",
    dict: "a mapping such as {name: value}",
    types.NoneType: "null",
}
LISTS = (list, tuple, collections.abc.Sequence)
NULL = ("null", "None", "none")
NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
NUMBERS = re.compile(rf"{NUMBER}(,\s*{NUMBER})*")  # 30 or 3000,300,30


class Mismatch(Exception):  # noqa: N818
    """A value is not of its type."""


def rule(hint: Any) -> str:
    """The values that a type allows, such as "a whole number"."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return f"{rule(parts[0])} {parts[1]}"
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}" if len(parts) > 1 else str(parts[0])
    if _is_union(hint):
        return ", or ".join(dict.fromkeys(rule(part) for part in parts))
    if origin in LISTS:
        if list_depth(hint) > 1:
            return "lists such as 300,30 300,100,10"
        return "a list of " + re.sub(r"^a (whole number|number|list)", r"\1s", rule(parts[0]))
    return RULES.get(origin or hint) or str(hint)


def choices(hint: Any) -> list[str]:
    """The words that a type allows, of all its literals."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return [str(part) for part in parts]
    return [word for part in parts for word in choices(part)] if _is_union(hint) else []


def list_depth(hint: Any) -> int:
    """1 for a list of numbers, 2 for a list of such lists, 0 for anything else."""
    return _depth(hint) or 0


def _depth(hint: Any) -> int | None:
    """How deeply the numbers of a type are nested in lists; None for a type without numbers."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if _is_union(hint):
        return max((depth for depth in map(_depth, parts) if depth is not None), default=None)
    if origin is Annotated:
        return _depth(parts[0])
    if origin in LISTS and parts:
        inner = _depth(parts[0])
        return None if inner is None else inner + 1
    return 0 if hint in (int, float) else None


def convert(value: Any, hint: Any) -> Any:
    """A plain value, or a text that stands for one, as a value of a type; a Mismatch if it is none."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        number = convert(value, parts[0])
        return number if parts[1].allows(number) else _refuse()
    if _is_union(hint):
        return _convert_to_any(value, parts)
    if origin is Literal:
        named = {str(part): part for part in parts}
        return named[str(value)] if str(value) in named else _refuse()
    if origin in LISTS:
        return _convert_list(value, origin, parts)
    if (origin or hint) in (dict, collections.abc.Mapping):
        found = _load(value)
        return found if isinstance(found, dict) and all(isinstance(key, str) for key in found) else _refuse()
    return _convert_plain(value, origin or hint)


def _convert_plain(value: Any, kind: Any) -> Any:
    if kind is types.NoneType:
        return None if value is None or value in NULL else _refuse()
    if kind is bool:
        named = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
        return named if isinstance(named, bool) else _refuse()
    if kind in (int, float):
        if isinstance(value, bool) or (kind is int and isinstance(value, float)):
            raise Mismatch
        try:
            return kind(value)
        except (TypeError, ValueError) as error:
            raise Mismatch from error
    if kind in (str, os.PathLike):
        return value if isinstance(value, str | os.PathLike) else _refuse()
    if kind is Path:
        return Path(value) if isinstance(value, str | os.PathLike) else _refuse()
    raise TypeError(f"options cannot be of the type {kind}")


def _convert_to_any(value: Any, hints: tuple[Any, ...]) -> Any:
    """The first member of a union that fits; str comes last, since it accepts any text."""
    for hint in sorted(hints, key=lambda hint: hint is str or "PathLike" in str(hint)):
        try:
            return convert(value, hint)
        except (Mismatch, TypeError):  # such as a class, which is not given as an option
            continue
    raise Mismatch


def _convert_list(value: Any, kind: Any, parts: tuple[Any, ...]) -> Any:
    items = _load(value)
    if not isinstance(items, list | tuple):
        raise Mismatch
    any_length = kind is not tuple or parts[-1] is Ellipsis
    hints = parts[:1] * len(items) if any_length else parts
    if len(hints) != len(items):
        raise Mismatch
    found = [convert(item, hint) for item, hint in zip(items, hints, strict=True)]
    return tuple(found) if kind is tuple else found


def join_tokens(tokens: list[str], hint: Any) -> Any:
    """Join the tokens of an option into one text or a list: `300 30`, `300,30` and `[300,30]` are the same.

    For a list of lists, each token is one list: `300,30 300,100,10`.
    """
    depth = list_depth(hint)
    if not depth or not NUMBERS.fullmatch(tokens[0]):
        return tokens[0]
    lists = [token.split(",") for token in tokens]
    return lists if depth > 1 else [item for one in lists for item in one]


def _load(value: Any) -> Any:
    """A text parsed as YAML; any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise Mismatch from error


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _refuse() -> Any:
    raise Mismatch
