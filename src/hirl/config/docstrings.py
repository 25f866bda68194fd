"""Help texts from docstrings: the summary of a class, and the description of an argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any


def summary(kind: Any) -> str:
    """The first paragraph."""
    return (inspect.getdoc(kind) or "").partition("\n\n")[0]


def argument_help(function: Callable[..., Any], name: str) -> str:
    """The description of an argument in the Args section of a docstring."""
    found = re.search(rf"^\s+{name}: (.*(?:\n\s{{8,}}.*)*)", inspect.getdoc(function) or "", re.MULTILINE)
    return " ".join(found[1].split()) if found else ""
