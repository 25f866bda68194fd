"""The layout of a command's help: descriptions and defaults of its options."""

from __future__ import annotations

from argparse import SUPPRESS, Action
from collections.abc import Iterable
from typing import Any

from jsonargparse import DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter):
    """Help without Python types, and a usage line without a hundred options."""

    def _get_help_string(self, action: Action) -> str:
        text, default = action.help or "", action.default
        if not action.option_strings or action.nargs == 0 or default in (None, SUPPRESS, [], ()):
            return text
        if "(default: " in text:  # jsonargparse formats an option without a text twice
            return text
        shown = ", ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
        return f"{text} (default: {shown.lower() if isinstance(default, bool) else shown})"

    def _format_usage(self, usage: str | None, actions: Iterable[Action], *args: Any, **options: Any) -> str:
        needed = [action for action in actions if action.required or not action.option_strings]
        return super()._format_usage(usage, needed, *args, **options).rstrip() + " [options]\n\n"
