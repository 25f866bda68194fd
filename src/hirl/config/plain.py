"""Configuration as plain data: read from YAML, brought up to date, and made of objects."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import yaml

from hirl.config.classes import class_path
from hirl.recipes import recipe_file


def read_options(name: str | os.PathLike[str]) -> dict[str, Any]:
    """The options in a YAML file or a shipped recipe, as written today; nothing that they name is imported."""
    file = recipe_file(os.fspath(name))
    refused = f"{os.fspath(name)!r} is not a YAML file of options"
    try:
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{refused}: {' '.join(str(error).split())}") from error
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ValueError(f"{refused}: it holds a {type(options).__name__} where `name: value` lines are expected")
    for key in options:
        if not isinstance(key, str):
            raise ValueError(f"{refused}: the name {key!r} must be text")
    return upgrade(options)


# Of the config.yaml of a run, which has them all; a recipe leaves some of them out.
_OF_A_RUN = {"data", "method", "hierarchy", "precision", "accumulate", "init_from"}
_IBOT = "hirl.methods.ibot.IBOT"
# Arguments that came later, at the values that do what was done before.
_LATER: dict[str, dict[str, Any]] = {
    "hirl.hierarchy.builder.HierarchicalKMeans": {"order": "bottom-up", "weighted": False, "path_steps": 5},
    _IBOT: {"separate_patch_head": False},
}


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
    if options.keys() >= _OF_A_RUN:
        options["method"] = _with_later_arguments(options["method"])
        if isinstance(options["hierarchy"], Mapping) and "builder" in options["hierarchy"]:
            builder = _with_later_arguments(options["hierarchy"]["builder"])
            options["hierarchy"] = {"bank_momentum": 0.0, **options["hierarchy"], "builder": builder}
    return options


def _with_later_arguments(described: Any) -> Any:
    """A `class_path` with all `init_args` of an earlier version, with those that have been added since."""
    if not (isinstance(described, Mapping) and isinstance(described.get("init_args"), Mapping)):
        return described
    name, arguments = str(described.get("class_path")), dict(described["init_args"])
    if name == _IBOT and "separate_patch_head" not in arguments and not arguments.get("shared_head", True):
        arguments |= {"shared_head": True, "separate_patch_head": True}  # it meant the head, not its last layer
    return {**described, "init_args": _LATER.get(name, {}) | arguments}


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
