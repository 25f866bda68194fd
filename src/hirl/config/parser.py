"""The command line and files of options as values: options, types and help are read off signatures."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from hirl.config.classes import find_class, known_classes
from hirl.config.options import (
    Option,
    check_complete,
    file_values,
    group_heading,
    help_lines,
    options_of,
    unknown_option,
)
from hirl.config.plain import read_options
from hirl.config.selection import Selection
from hirl.config.signatures import Slot, argument_help, parameters, summary


class CommandLine:
    """The tokens of a command line, read once: those before the first option, and those after each."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.groups: list[tuple[str | None, list[str], bool]] = [(None, [], False)]  # option, tokens, given as --x=y
        for token in tokens:
            if token.startswith("--") and len(token) > 2:
                name, equals, value = token[2:].partition("=")
                self.groups.append((name, [value] if equals else [], bool(equals)))
            else:
                self.groups[-1][1].append(token)
        self.wants_help = "help" in self.options or "-h" in tokens

    @property
    def options(self) -> list[str]:
        return [name for name, _, _ in self.groups if name is not None]

    def values(self, name: str) -> list[str | None]:
        """The first token after each use of an option; None where there is none."""
        return [tokens[0] if tokens else None for option, tokens, _ in self.groups if option == name]

    def last_values(self) -> dict[str, str | None]:
        return {name: self.values(name)[-1] for name in self.options}


class Parser:
    """Reads options off signatures and raises a ValueError of one sentence for any mistake.

    An option that takes an object (`--method DINO`) names a class, whose arguments are options of their own
    (`--method.lr 0.1`). The classes and `--config` files on the command line decide which options there are.
    """

    def __init__(self, *, argv: Sequence[str] = (), prog: str = "", description: str = "") -> None:
        self.prog, self.description = prog, description
        self.line = CommandLine(argv)
        self.options: dict[str, Option] = {}
        if prog:
            self.options["help"] = Option("help", about="Show this text and exit.", flag=True, consumed=True)
        self.groups: dict[str, str] = {"": ""}  # heading → text
        self.selections: list[Selection] = []
        self.given: dict[str, Any] = {}  # values from files
        self.post_process: Callable[[Mapping[str, Any], Namespace], None] | None = None
        """Called with the values from files, by dotted name, and all values, to fit one to the other."""

    # Options

    def add_argument(
        self,
        name: str,
        *,
        type: Any = str,  # noqa: A002 (as argparse calls it)
        default: Any = None,
        required: bool = False,
        nargs: Literal["?", "*", "+"] | None = None,
        action: Literal["store_true"] | None = None,
        help: str = "",  # noqa: A002
    ) -> None:
        """Add an option, `--name`, or an argument, `name`, as argparse does."""
        positional = not name.startswith("--")
        self.options[name.lstrip("-")] = Option(
            name=name.lstrip("-"),
            hint=type,
            default=False if action else default,
            about=help,
            positional=positional,
            required=required or (positional and nargs in (None, "+")),
            many=nargs in ("*", "+"),
            flag=action is not None,
        )

    def add_options(self, function: Callable[..., Any], key: str = "", *, skip: Collection[str] = ()) -> None:
        """Add an option for each parameter of a function or class, except those in `skip`.

        With a key, the options of a class are `--key.name`, and the values hold an object of the class at the key.
        """
        self._add_selection(Selection(function, key, line=self.line.last_values(), skip=skip))

    def add_object(self, key: str, base: type, about: str) -> None:
        """Add an option for an object of a class, by default null: `--key` names the class, `--key.name` arguments."""
        selection = Selection(lambda: None, line=self.line.last_values())
        selection.add_slot(key, Slot(base, None, about, optional=True))
        self._add_selection(selection)

    def add_config_options(
        self, function: Callable[..., Any], *, positional: str, only: Collection[str] | None = None
    ) -> None:
        """Add the options of a function and `--config`, and read the files that the command line names with it.

        Args:
            function: A function with types and an Args section in its docstring.
            positional: The parameter that is given without dashes. A file may give it as well.
            only: The parameters that get options; a file may hold the others, which has no effect. By default all.
        """
        skip = set() if only is None else parameters(function).keys() - {positional, *only}
        selection = Selection(function, line=self.line.last_values(), skip=skip)
        for name in self.line.values("config"):
            if name is None:
                raise ValueError("--config needs a value: a recipe such as small/dino or a YAML file")
            selection.read(read_options(name), name)
        given, about = selection.values.pop(positional, None), argument_help(function, positional)
        self.options[positional] = Option(positional, Any, given, about, positional=True)
        about = "A recipe such as small/dino, or a YAML file."
        self.options["config"] = Option("config", about=about, consumed=True, metavar="RECIPE")
        selection.skip = {positional, *skip}
        self._add_selection(selection)
        self.given = file_values(selection)

    def _add_selection(self, selection: Selection) -> None:
        self.selections.append(selection)
        groups = {key: group_heading(key, owner) for key, owner in selection.owners().items()}
        for key, slot in selection.slots.items():
            metavar = "null" if slot.optional and not inspect.isabstract(slot.base) else "CLASS"
            group = groups.get(key.rpartition(".")[0], "")
            self.options[key] = Option(key, about=slot.about, group=group, consumed=True, metavar=metavar)
            known = list(known_classes(slot.base))
            listed = f": {', '.join(known)}" if len(known) > 1 else ""
            about = f"Show the options of a {key.rpartition('.')[2]} and exit{listed}."
            name = f"{key}.help"
            self.options[name] = Option(name, about=about, group=group, consumed=True, metavar="CLASS")
        for option in options_of(selection):
            self.options.setdefault(option.name, option)
        for key, owner in selection.owners().items():
            if key:
                self.groups[groups[key]] = summary(owner)

    # Values

    def read(self) -> Namespace:
        """The values of all options, with an object wherever a class was chosen."""
        self._show_help()
        top = {name: option.default for name, option in self.options.items() if not (option.consumed or option.group)}
        values = top | self.given | self._line_values()
        for option in self.options.values():
            if option.required and values.get(option.name) in (None, []):
                raise ValueError(f"the {'argument ' if option.positional else 'option --'}{option.name} is missing")
        for selection in self.selections:
            check_complete(selection, values)
        for selection in self.selections:
            values = selection.build(values)
        namespace = Namespace(**values)
        if self.post_process is not None:
            self.post_process(self.given, namespace)
        return namespace

    def _line_values(self) -> dict[str, Any]:
        """The values of the options on the command line, and then of the arguments."""
        values: dict[str, Any] = {}
        arguments: list[str] = []
        follows: list[str | None] = []  # the option before each of the arguments
        for name, tokens, joined in self.line.groups:
            option = None if name is None else self.options.get(name)
            if name is None:
                arguments += tokens
                follows += [None] * len(tokens)
                continue
            if option is None or option.positional:
                raise ValueError(self._unknown(name))
            count = option.count_tokens(tokens, joined=joined)
            if not count and not option.flag:
                raise ValueError(f"--{name} needs a value")
            if not option.consumed:
                values[name] = option.value(tokens[:count])
            arguments += tokens[count:]
            follows += [name] * len(tokens[count:])
        for option in self.options.values():
            if option.positional and arguments:
                own, arguments = (arguments, []) if option.many else (arguments[:1], arguments[1:])
                values[option.name] = option.value(own)
        if arguments:
            before = follows[-len(arguments)]
            raise ValueError(f"unexpected argument {arguments[0]!r}" + (f" after --{before}" if before else ""))
        return values

    def _unknown(self, name: str) -> str:
        for selection in self.selections:
            for key in selection.slots:
                if name.startswith(f"{key}.") and selection.kinds.get(key) is None:
                    state = "is null" if key in selection.kinds else "is missing"
                    remedy = "" if key in self.line.options else f": give --{key} as well"
                    return f"there is no option --{name}, since --{key} {state}{remedy}"
        return unknown_option(name, [option.name for option in self.options.values() if not option.positional])

    # Help

    def _show_help(self) -> None:
        for selection in self.selections:
            for key, slot in selection.slots.items():
                if f"{key}.help" in self.line.options:
                    named = self.line.last_values()[f"{key}.help"]
                    kind = find_class(named, slot.base, what=key) if named else selection.owners().get(key)
                    if kind is None:
                        names = ", ".join(known_classes(slot.base))
                        raise ValueError(f"--{key}.help needs a class: choose one of {names}")
                    shown = Parser()
                    shown.add_options(kind, key)
                    print(shown.help_text())
                    raise SystemExit(0)
        if self.line.wants_help:
            print(self.help_text())
            raise SystemExit(0)

    def help_text(self) -> str:
        """The usage, and every option with its description and its default."""
        width = max(60, shutil.get_terminal_size().columns - 2)
        positional = [option for option in self.options.values() if option.positional]
        parts = []
        if self.prog:
            required = [option for option in self.options.values() if option.required and not option.positional]
            usage = [option.name if option.required else f"[{option.name}]" for option in positional]
            usage += [f"--{option.name} ..." for option in required]
            parts += [" ".join(["usage:", self.prog, *usage, "[options]"]), *textwrap.wrap(self.description, width)]
        sections = {"arguments": ("", positional)} if positional else {}
        for group, text in self.groups.items():
            own = [option for option in self.options.values() if option.group == group and not option.positional]
            sections[group or "options"] = (text, own)
        for heading, (text, own) in sections.items():
            if own:
                parts += ["", f"{heading}:", *textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")]
                parts += [line for option in own for line in help_lines(option, width)]
        return "\n".join(parts)


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
    selection = Selection(function, classes=classes, option="--classes", skip=skip)
    selection.read(options, source)
    values = file_values(selection)
    check_complete(selection, values, source=source)
    return selection.build(values)
