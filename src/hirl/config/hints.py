"""Type hints of options: a rule for error messages, whether null is allowed, how deep lists are nested."""

from __future__ import annotations

import collections.abc
import os
import re
import types
import typing
from argparse import Action
from typing import Any, Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

RULES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    os.PathLike: "a path",
    dict: "a mapping such as {name: value}",
    PositiveInt: "a whole number of at least 1",
    NonNegativeInt: "a whole number of at least 0",
    types.NoneType: "null",
}
LISTS = (list, tuple, collections.abc.Sequence)


def hint_of(action: Action) -> Any:
    return getattr(action, "_typehint", None) or action.type


def rule(hint: Any) -> str | None:
    """A description of valid values, such as "a whole number"; None for types without one."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}" if len(parts) > 1 else str(parts[0])
    if origin in (typing.Union, types.UnionType):
        rules = [rule(part) for part in parts]
        return None if None in rules else ", or ".join(map(str, rules))
    if origin in LISTS:
        items = rule(parts[0])
        return None if items is None else "a list of " + re.sub(r"^a (whole number|number|list)", r"\1s", items)
    return RULES.get(origin or hint) or (hint.__doc__ if isinstance(hint, type) and issubclass(hint, float) else None)


def takes_null(action: Action) -> bool:
    hint = hint_of(action)
    return hint in (None, Any) or types.NoneType in typing.get_args(hint)


def list_depth(action: Action) -> int:
    """1 if the option's one value is a list of numbers, 2 if it is a list of such lists, 0 if it is neither."""
    return (_depth(hint_of(action)) or 0) if action.nargs is None else 0


def _depth(hint: Any) -> int | None:
    """How many lists deep the numbers of a type stand; None if there are none."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return max((depth for depth in map(_depth, parts) if depth is not None), default=None)
    if origin in LISTS and parts:
        inner = _depth(parts[0])
        return None if inner is None else inner + 1
    return 0 if isinstance(hint, type) and issubclass(hint, int | float) else None
