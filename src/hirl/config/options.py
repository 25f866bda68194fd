"""Options: one per parameter of a signature, their values from tokens and files, and how the help shows them."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from hirl.config.classes import known_classes
from hirl.config.selection import Selection
from hirl.config.signatures import MISSING, Parameter, parameters
from hirl.config.values import NUMBERS, Mismatch, choices, convert, join_tokens, list_depth, rule

HELP_COLUMN = 24


@dataclass
class Option:
    """An option, or with `positional` an argument without dashes.

    many: takes all tokens that follow; flag: takes none, and is true if it is given; consumed: its value has been used
    already, to find out which other options there are.
    """

    name: str
    hint: Any = str
    default: Any = None
    about: str = ""
    group: str = ""
    positional: bool = False
    required: bool = False
    many: bool = False
    flag: bool = False
    consumed: bool = False
    metavar: str = ""

    def count_tokens(self, tokens: list[str], *, joined: bool) -> int:
        """How many of the following tokens belong to this option; the rest are arguments."""
        if self.flag:
            return 0
        if joined:
            return 1
        if self.many:
            return len(tokens)
        if list_depth(self.hint) and tokens and NUMBERS.fullmatch(tokens[0]):
            return next((place for place, token in enumerate(tokens) if not NUMBERS.fullmatch(token)), len(tokens))
        return min(1, len(tokens))

    def value(self, tokens: list[str]) -> Any:
        """The tokens as a value, or a ValueError with the rule that they break."""
        if self.flag:
            return True
        try:
            if self.many:
                return [convert(token, self.hint) for token in tokens]
            return convert(join_tokens(tokens, self.hint), self.hint)
        except Mismatch as error:
            name = self.name if self.positional else f"--{self.name}"
            shown = " ".join(token or "''" for token in tokens)
            raise ValueError(f"{name} is {shown}, but must be {self._rule(tokens)}") from error

    def _rule(self, tokens: list[str]) -> str:
        """The rule of the type, with what these tokens may have meant."""
        text = rule(self.hint)
        if list_depth(self.hint) and any(token.lower().lstrip("+-") in ("nan", "inf") for token in tokens):
            return re.sub(r"\bnumbers", "finite numbers", text)
        close = difflib.get_close_matches(tokens[0], choices(self.hint), n=1) if tokens else []
        return text + (f": did you mean {close[0]}?" if close else "")

    @property
    def heading(self) -> str:
        """Its name as the help shows it: `--levels N [N ...]`."""
        if self.positional:
            return self.name
        shown = self.metavar
        if not shown and list_depth(self.hint):
            shown = "N [N ...]"
        elif not shown and self.hint is bool:
            shown = "{true,false}"
        elif not shown and get_origin(self.hint) is Literal:
            shown = f"{{{','.join(map(str, get_args(self.hint)))}}}"
        shown = shown or self.name.rpartition(".")[2].upper()
        return f"--{self.name}" if self.flag else f"--{self.name} {shown}{' ...' if self.many else ''}"

    @property
    def explanation(self) -> str:
        if self.positional or self.flag or self.default in (None, MISSING, [], ()):
            return self.about
        values = self.default if isinstance(self.default, list | tuple) else [self.default]
        shown = ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
        return f"{self.about} (default: {shown})".lstrip()


def file_values(selection: Selection) -> dict[str, Any]:
    """The values that files give, checked and of their types. A mistake names its file."""
    known = {option.name: option for option in options_of(selection)}
    values = {}
    for key, value in selection.values.items():
        source = selection.sources[key]
        if key not in known:
            raise ValueError(f"{source!r}: {unknown_option(key, [*known, *selection.slots], '')}")
        hint = known[key].hint
        try:
            values[key] = convert(value, hint)
        except Mismatch as error:
            shown = "null" if value is None else "''" if value == "" else value
            raise ValueError(f"{source!r}: {key} is {shown}, but must be {rule(hint)}") from error
    return values


def check_complete(selection: Selection, values: Mapping[str, Any], *, source: str | None = None) -> None:
    """Raise a ValueError if an object or a parameter without a default is not given."""
    where, dashes = ("", "--") if source is None else (f"{source!r}: ", "")
    for key, slot in selection.slots.items():
        if key not in selection.kinds:
            names = ", ".join(known_classes(slot.base))
            raise ValueError(f"{where}the option {dashes}{key} is missing: choose one of {names}")
    for option in options_of(selection):
        if option.default is MISSING and values.get(option.name, MISSING) is MISSING:
            raise ValueError(f"{where}the option {dashes}{option.name} is missing")


def unknown_option(name: str, known: Sequence[str], dashes: str = "--") -> str:
    """The message for an unknown option, with similar ones: `batch_size` for `batch-size`, `method.lr` for `lr`."""
    meant = name.replace("-", "_")
    known = [option for option in known if not option.endswith(".help")]
    close = [option for option in known if option.rpartition(".")[2] == meant.rpartition(".")[2]]
    close.sort(key=lambda option: option.count("."))
    close += difflib.get_close_matches(meant, known, n=2, cutoff=0.75)
    named = " or ".join(f"{dashes}{option}" for option in list(dict.fromkeys(close))[:3])
    return f"there is no option {dashes}{name}" + (f": did you mean {named}?" if named else "")


def options_of(selection: Selection) -> Iterator[Option]:
    """An option for each plain parameter of the function and of the classes that are chosen for it."""
    for key, owner in selection.owners().items():
        prefix, group = f"{key}." if key else "", group_heading(key, owner)
        for name, parameter in parameters(owner).items():
            place = prefix + name
            skipped = place in selection.skip or (key == selection.key and name in selection.skip)
            if isinstance(parameter, Parameter) and not skipped:
                default = selection.defaults.get(place, parameter.default)
                yield Option(place, parameter.hint, default, parameter.about, group)


def group_heading(key: str, owner: Callable[..., Any]) -> str:
    return f"{key} options ({owner.__name__})" if key else ""


def help_lines(option: Option, width: int) -> list[str]:
    heading = f"  {option.heading}"
    indent = " " * HELP_COLUMN
    text = textwrap.wrap(option.explanation, width, initial_indent=indent, subsequent_indent=indent)
    if text and len(heading) < HELP_COLUMN - 1:
        return [heading.ljust(HELP_COLUMN) + text[0].lstrip(), *text[1:]]
    return [heading, *text]
