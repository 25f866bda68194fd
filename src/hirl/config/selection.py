"""The classes that options and files choose, and the plain values they give."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hirl.config.classes import find_class, is_named, is_outside_hirl, known_classes
from hirl.config.signatures import MISSING, Slot, parameters
from hirl.config.values import NULL


@dataclass
class Selection:
    """The class chosen for each slot of a function, and the plain values given for all other parameters.

    Keys are dotted: `method`, `hierarchy.builder` for slots, `epochs`, `method.lr` for values. A slot without a key in
    `kinds` is still open; None in `kinds` stands for null. Slots start from their defaults; `read` puts the options of
    a file on top.
    """

    function: Callable[..., Any]
    key: str = ""  # where the function's own parameters stand; by default at the top
    line: Mapping[str, str | None] = field(default_factory=dict)  # options of the command line; they go before a file
    classes: Collection[type] = ()  # that the user has named otherwise
    option: str | None = None  # that names these classes; by default that of the slot
    skip: Collection[str] = ()  # parameters that get no option; a file may hold them, without effect
    slots: dict[str, Slot] = field(default_factory=dict)  # the parameters that take an object
    kinds: dict[str, type | None] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # the file of each of the values
    # values in which a default object differs from its constructor's defaults
    defaults: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._add_slots(self.function, f"{self.key}." if self.key else "")

    def read(self, options: Mapping[str, Any], source: str) -> None:
        """Apply the plain options of a file."""
        self._read(options, f"{self.key}." if self.key else "", source)
        for key, value in self.line.items():
            if f"{key}_args" not in self.line and value != self.values.get(key, value):
                self._drop_arguments_of(key, f"--{key} {value}")

    def build(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the function, of values by dotted key: an object wherever a class was chosen."""
        values = {**self.defaults, **given}
        chosen = dict(self.kinds)
        if self.key:
            assert isinstance(self.function, type)
            chosen[self.key] = self.function
        for key in sorted(chosen, key=lambda key: key.count("."), reverse=True):  # innermost first
            kind, below = chosen[key], f"{key}."
            arguments = {name[len(below) :]: values.pop(name) for name in list(values) if name.startswith(below)}
            values[key] = None if kind is None else kind(**arguments)
        return values

    def owners(self) -> dict[str, Callable[..., Any]]:
        """The function at its key, and at its own every class that is chosen, or would be by any of its options."""
        # A slot that is null offers the options of its usual class, unless the command line says that it is null.
        classes = {
            key: kind or (None if key in self.line else self.slots[key].usual) for key, kind in self.kinds.items()
        }
        return {self.key: self.function} | {key: kind for key, kind in classes.items() if kind is not None}

    def _add_slots(self, function: Callable[..., Any], prefix: str, default: Any = None) -> None:
        """Add the slots of a function or class; an object `default` gives their defaults."""
        for name, parameter in parameters(function).items():
            value = getattr(default, name, parameter.default) if default is not None else parameter.default
            if isinstance(parameter, Slot):
                if prefix + name not in self.skip:
                    self.add_slot(prefix + name, parameter._replace(default=value))
            elif value != parameter.default:
                self.defaults[prefix + name] = value

    def add_slot(self, key: str, slot: Slot) -> None:
        """Add a slot, filled with the class that the command line names, or else with its default."""
        self.slots[key] = slot
        if key in self.line:
            named = self.line[key]
            if named is None:
                raise ValueError(f"--{key} needs a value: choose one of {', '.join(known_classes(slot.base))}")
            if named in NULL and not slot.optional:
                raise ValueError(f"--{key} cannot be null here")
            self._fill_slot(key, None if named in NULL else self._find(key, named))
        elif slot.default is None:
            given = any(name.startswith(f"{key}.") and name != f"{key}.help" for name in self.line)
            self._fill_slot(key, slot.usual if given else None)
        elif slot.default is not MISSING:
            self._fill_slot(key, type(slot.default))

    def _find(self, key: str, named: str) -> type[Any]:
        slot = self.slots[key]
        try:
            return find_class(named, slot.base, what=key)
        except ValueError as error:
            if not slot.optional or inspect.isabstract(slot.base) or len(known_classes(slot.base)) > 1:
                raise
            raise ValueError(
                f"--{key} is {named}, but takes null alone, for none; its settings are the options --{key}.NAME"
            ) from error

    def _fill_slot(self, key: str, kind: type | None) -> None:
        below = f"{key}."
        for kept in (self.slots, self.kinds, self.values, self.sources, self.defaults):
            for name in [name for name in kept if name.startswith(below)]:
                del kept[name]
        self.kinds[key] = kind
        if kind is not None:
            default = self.slots[key].default
            self._add_slots(kind, below, default if type(default) is kind else None)

    def _read(self, options: Mapping[str, Any], prefix: str, source: str) -> None:
        for name, value in options.items():
            key = f"{prefix}{name}"
            if key in self.skip:
                continue
            if key in self.slots:
                self._read_object(key, value, source)
            elif _holds_class(value):
                raise ValueError(f"{source!r} has a class_path within {key}, which takes plain values only")
            else:
                if value != self.values.get(key, value):
                    self._drop_arguments_of(key, source)
                self.values[key], self.sources[key] = value, source

    def _drop_arguments_of(self, key: str, by: str) -> None:
        """Drop the value of `KEY_args`, which are arguments of the value of KEY, when another value replaces that."""
        arguments = f"{key}_args"
        if self.values.get(arguments) and self.sources[arguments] != by:
            warnings.warn(
                f"{arguments} {self.values[arguments]} of {self.sources[arguments]!r} are dropped, since {by} names "
                f"another {key.rpartition('.')[2]}",
                stacklevel=2,
            )
            del self.values[arguments], self.sources[arguments]

    def _read_object(self, key: str, value: Any, source: str) -> None:
        slot, fixed = self.slots[key], key in self.line
        if value is None:
            if not slot.optional:
                raise ValueError(f"{key} is null in {source!r}, but must be a {slot.base.__name__}")
            if not fixed and not any(name.startswith(f"{key}.") for name in self.line):
                self._fill_slot(key, None)
            return
        path, arguments = _class_and_arguments(key, value, source)
        current = self.kinds.get(key)
        if path is None:
            if current is None and not fixed:
                self._fill_slot(key, self._usual(key, source))
        else:
            named = [*self.classes, current] if fixed and current is not None else self.classes
            if fixed and is_outside_hirl(path) and not any(is_named(path, kind) for kind in named):
                return
            kind = find_class(path, slot.base, what=key, file=source, classes=named, option=self.option)
            if fixed and kind is not current:
                return  # the arguments in the file are those of another class than the command line names
            if kind is not current:
                self._fill_slot(key, kind)
        if self.kinds.get(key) is not None:
            self._read(arguments, f"{key}.", source)

    def _usual(self, key: str, source: str) -> type:
        slot = self.slots[key]
        if isinstance(slot.default, slot.base):
            return type(slot.default)
        if slot.usual is not None:
            return slot.usual
        if inspect.isabstract(slot.base):
            raise ValueError(
                f"{source!r} gives {key} no class_path: choose one of {', '.join(known_classes(slot.base))}"
            )
        return slot.base


def _class_and_arguments(key: str, value: Any, source: str) -> tuple[str | None, Mapping[str, Any]]:
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {value!r} in {source!r}, but must be a class with its class_path and init_args")
    if "class_path" not in value:
        return None, value
    path, arguments = value["class_path"], value.get("init_args")
    if not isinstance(path, str) or not isinstance(arguments, Mapping | None):
        raise ValueError(f"{key} is {value!r} in {source!r}, but its class_path must be text and its init_args options")
    for name in value:
        if name not in ("class_path", "init_args"):
            raise ValueError(f"{key} in {source!r} has class_path and init_args, but also {name!r}")
    return path, arguments or {}


def _holds_class(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "class_path" in value or any(map(_holds_class, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_class, value))
