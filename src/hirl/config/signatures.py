"""The parameters of a function, with their types, defaults and help, from its signature and docstring."""

from __future__ import annotations

import inspect
import os
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypeVar

MISSING: Any = inspect.Parameter.empty
# never given as class_path
PLAIN_TYPES = (str, int, float, complex, bytes, list, tuple, dict, set, type, os.PathLike, Enum)

F = TypeVar("F", bound=Callable[..., Any])


class Parameter(NamedTuple):
    """A parameter of a function or class that takes plain values."""

    hint: Any
    default: Any  # MISSING if there is none
    about: str


class Slot(NamedTuple):
    """A parameter that takes an object of the class `base`, or if it is optional None.

    `usual`: the class that takes options given without a class, if that is not the class of the default. A signature
    names it as `Annotated[Base | None, Usual]`.
    """

    base: type
    default: Any
    about: str
    optional: bool
    usual: type | None = None


def passes_options_to(target: Callable[..., Any]) -> Callable[[F], F]:
    """Mark a function whose **options are further arguments of `target`: they become options as well."""

    def mark(function: F) -> F:
        function.passes_options_to = target  # type: ignore[attr-defined]
        return function

    return mark


def parameters(function: Callable[..., Any]) -> dict[str, Parameter | Slot]:
    """The parameters of a function or class by name, and those of the function that it passes its **options to."""
    try:
        hints = typing.get_type_hints(_annotated(function), include_extras=True)
    except NameError:  # a type that is imported for type checkers only
        hints = {}
    found: dict[str, Parameter | Slot] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint, usual = _without_usual_class(hints.get(name, Any))
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        kinds = [part for part in parts if part is not types.NoneType]
        default, about = parameter.default, argument_help(function, name)
        if len(kinds) == 1 and _takes_object(kinds[0]):
            found[name] = Slot(kinds[0], default, about, optional=len(parts) > 1, usual=usual)
        else:
            found[name] = Parameter(hint, default, about)
    target = getattr(function, "passes_options_to", None)
    return found if target is None else parameters(target) | found


def _annotated(function: Callable[..., Any]) -> Any:
    """The object with the annotations: the function, a class's constructor, or the dataclass."""
    if not isinstance(function, type):
        return function
    owner = next(kind for kind in function.__mro__ if "__init__" in vars(kind))
    return owner if "__dataclass_fields__" in vars(owner) else owner.__init__  # type: ignore[misc]


def _without_usual_class(hint: Any) -> tuple[Any, type | None]:
    """Split `Annotated[Base | None, Usual]` into its type and its class; any other hint has none."""
    if typing.get_origin(hint) is Annotated and isinstance(usual := hint.__metadata__[0], type):
        return hint.__origin__, usual
    return hint, None


def _takes_object(hint: Any) -> bool:
    is_class = isinstance(hint, type) and typing.get_origin(hint) is None and hint not in (object, Any)
    return is_class and not issubclass(hint, PLAIN_TYPES)


def summary(kind: Any) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(kind) or "").partition("\n\n")[0]


def argument_help(function: Callable[..., Any], name: str) -> str:
    """The description of an argument in the Args section of a docstring, or in that of a class that it extends."""
    for documented in inspect.getmro(function) if isinstance(function, type) else (function,):
        found = re.search(rf"^\s+{name}: (.*(?:\n\s{{8,}}.*)*)", inspect.getdoc(documented) or "", re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    return ""
