"""Configuration as plain data: what YAML holds, and the objects it stands for.

A class stands in a configuration as `class_path` and `init_args`. One rule covers every class path: a file may name
classes of hirl only, since importing a class runs its module; classes from elsewhere are named on the command line or
passed in Python.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
PACKAGE = "hirl"


def to_plain(value: Any) -> Any:
    """Lists, dicts, numbers and strings that YAML gives back unchanged.

    Dataclasses become their fields; an object with `arguments` (a method) or a dataclass that is one of several
    implementations of an abstract class becomes `class_path` and `init_args`.
    """
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    arguments = getattr(value, "arguments", None)
    if isinstance(arguments, Mapping):
        return {"class_path": class_path(type(value)), "init_args": to_plain(arguments)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def class_path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def find_class(path: str, base: type[T], *, file: str | os.PathLike[str] | None = None) -> type[T]:
    """The subclass of `base` that `path` names: `DINO`, `hirl.methods.dino.DINO` or `my_package.MyMethod`.

    `file`: where the path was read from, if not given by the user directly; then it must lie within hirl.
    """
    what = base.__name__.lower()
    module, _, name = path.rpartition(".")
    if file is not None and module and module.split(".")[0] != PACKAGE:
        raise ValueError(
            f"{os.fspath(file)!r} names the {what} {path!r}, which is not part of hirl: name it yourself, with "
            f"--{what} {path} or in Python"
        )
    try:
        kind = getattr(importlib.import_module(module or base.__module__.rpartition(".")[0]), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no {what} {path!r}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ValueError(f"{path!r} is not a {what}: it must be a subclass of {class_path(base)}")
    return kind


def upgrade(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as written today, from options of any earlier version."""
    options = dict(options)
    hierarchy = options.get("hierarchy")
    if isinstance(hierarchy, Mapping) and not {"iterations", "tolerance"}.isdisjoint(hierarchy):
        hierarchy = dict(hierarchy)
        arguments = {name: hierarchy.pop(name) for name in ("iterations", "tolerance") if name in hierarchy}
        arguments |= {"restarts": 1, "spherical": True}  # as they were then
        builder = {"class_path": "hirl.hierarchy.builder.HierarchicalKMeans", "init_args": arguments}
        options["hierarchy"] = hierarchy | {"builder": builder}
    return options
