"""Plain options made into keyword arguments: types checked, classes found, objects built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from hirl.config.choices import Choices
from hirl.config.parser import Parser


def load(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    source: str = "the options",
    classes: Collection[type] = (),
    skip: Collection[str] = (),
) -> dict[str, Any]:
    """Keyword arguments for a function or class, of the plain options that YAML holds.

    Options that are not given are left to the function, except for those that take an object.

    Args:
        function: Any function or class with typed parameters.
        options: Options by name; objects as `class_path` and `init_args`.
        source: The file that the options come from, for messages.
        classes: Classes outside hirl that the options may name.
        skip: Parameters that are left out, whether the options give them or not.
    """
    choices = Choices(function, classes=classes, option="--classes", skip=skip)
    choices.read(options, source)
    parser = Parser()
    namespace = parser.parse_files(choices)
    parser.source = source
    return dict(vars(parser.build(namespace)))
