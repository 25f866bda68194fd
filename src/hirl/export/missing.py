"""A library of the extra `export`, or one sentence that says how to install it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def import_or_explain(module: str, target: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"exporting to {target} needs the library {module}, which is not installed: pip install 'hirl[export]'"
        ) from error
