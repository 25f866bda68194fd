"""Class paths: one rule for which class an option names, wherever it is written.

A class stands in a configuration as `class_path` and `init_args`, or by its name alone. A file may name classes of hirl
only, since importing a class runs its module. A class from elsewhere must be named by the user, on the command line or
in Python; where a file names that same class, its `init_args` are used.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Collection, Iterator
from typing import Any

PACKAGE = __name__.partition(".")[0]


def class_path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def known_classes(base: type) -> dict[str, type[Any]]:
    """The classes for `base` that can be named without their module, by name: those of the package it comes from."""
    package = base.__module__.rpartition(".")[0] or base.__module__
    importlib.import_module(package)
    top = package.partition(".")[0]

    def below(kind: type[Any]) -> Iterator[type[Any]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    candidates = below(base) if inspect.isabstract(base) else [base]  # a class that stands for itself has no variants
    found = [kind for kind in candidates if kind.__module__.partition(".")[0] == top and not inspect.isabstract(kind)]
    return {kind.__name__: kind for kind in sorted(found, key=lambda kind: kind.__name__)}


def find_class(
    path: str,
    base: type,
    *,
    what: str | None = None,
    file: str | os.PathLike[str] | None = None,
    classes: Collection[type] = (),
    option: str | None = None,
) -> type[Any]:
    """The subclass of `base` that `path` names: `DINO`, `hirl.methods.DINO` or `my_package.MyMethod`.

    Args:
        path: A name or a dotted path.
        base: The class that it must be a subclass of.
        what: The option that takes it, for messages; by default the name of `base`.
        file: The file that the path was read from, unless the user gave the path directly.
        classes: Classes that the user has named, which a file may name as well.
        option: The option that names such classes on the command line; by default that of `what`.
    """
    what = what or base.__name__.lower()
    noun = what.rpartition(".")[2]
    known = known_classes(base)
    kind = next((kind for kind in classes if is_named(path, kind)), None)
    if kind is None and "." not in path:
        if path not in known:
            lower = {name.lower(): name for name in known}
            close = difflib.get_close_matches(path.lower(), lower, n=1)
            raise ValueError(
                f"there is no {noun} {path!r}: choose one of {', '.join(known)}, or package.module.Class for your own"
                + (f"; did you mean {lower[close[0]]}?" if close else "")
            )
        kind = known[path]
    elif kind is None:
        if file is not None and is_outside_hirl(path):
            raise ValueError(
                f"{os.fspath(file)!r} names the {noun} {path!r}, which is not part of hirl: name the class yourself, "
                f"with {option or f'--{what}'} {path} or in Python"
            )
        kind = import_class(path, noun)
    if not issubclass(kind, base):
        raise ValueError(f"{path!r} is not a {noun}, but must be a subclass of {class_path(base)}")
    if inspect.isabstract(kind):
        raise ValueError(f"{path!r} is an abstract class: choose one of {', '.join(known)}")
    return kind


def import_class(path: str, noun: str = "class") -> type[Any]:
    """The class at a dotted path, which the user has given; its module is run."""
    module, _, name = path.rpartition(".")
    try:
        kind: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "; PYTHONPATH must name the folder of your module" if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"there is no {noun} {path!r}: {error}{hint}") from error
    if not isinstance(kind, type):
        raise ValueError(f"{path!r} is not a class but a {type(kind).__name__}")
    return kind


def is_named(path: str, kind: type) -> bool:
    """Whether `path` names `kind`; nothing is imported to find out."""
    module, _, name = path.rpartition(".")
    return path == class_path(kind) or getattr(sys.modules.get(module), name, None) is kind


def is_outside_hirl(path: str) -> bool:
    """Whether `path` leads out of hirl; a name alone does not."""
    return "." in path and path.partition(".")[0] != PACKAGE
