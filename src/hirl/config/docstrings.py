"""What docstrings say of a class and of an argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any


def summary(kind: Any) -> str:
    """The first paragraph."""
    return (inspect.getdoc(kind) or "").partition("\n\n")[0]


def argument_help(function: Callable[..., Any], name: str) -> str:
    """What the Args section of a docstring says of an argument."""
    found = re.search(rf"^\s+{name}: (.*(?:\n\s{{8,}}.*)*)", inspect.getdoc(function) or "", re.MULTILINE)
    return " ".join(found[1].split()) if found else ""
