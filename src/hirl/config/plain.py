"""Configuration as plain data: read from YAML, and made of objects."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import yaml

from hirl.config.classes import class_path
from hirl.recipes import recipe_file

FORMAT_KEY = "format"


def read_options(name: str | os.PathLike[str]) -> dict[str, Any]:
    """The options in a YAML file or a shipped recipe. Nothing that they name is imported.

    The config.yaml of a run names its format, which is no option.
    """
    file = recipe_file(os.fspath(name))
    refused = f"{os.fspath(name)!r} is not a YAML file of options"
    try:
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{refused}: {where}{error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{refused}: it is not a text file") from error
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ValueError(f"{refused}: it holds a {type(options).__name__} where `name: value` lines are expected")
    for key in options:
        if not isinstance(key, str):
            raise ValueError(f"{refused}: the name {key!r} is not text")
    return {name: value for name, value in options.items() if name != FORMAT_KEY}


def to_plain(value: Any) -> Any:
    """Lists, dicts, numbers and strings that YAML gives back unchanged.

    An object with `arguments` (a method, a tree builder) becomes `class_path` and `init_args`; any other dataclass
    becomes its fields.
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
