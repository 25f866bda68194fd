"""The parser: options, types and help read off signatures, with values from files and from the command line."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from hirl.config.choices import Choices, Slot
from hirl.config.classes import find_class, known_classes
from hirl.config.docstrings import argument_help, summary
from hirl.config.help import HelpFormatter
from hirl.config.hints import list_depth, takes_null
from hirl.config.line import join_lists, last_values, option_values, without_options
from hirl.config.plain import read_options
from hirl.config.sentences import option_names, sentence, unknown


class Parser(ArgumentParser):
    """A parser that reads its options off signatures and raises a ValueError of one sentence for any mistake.

    An option that takes an object (`--method DINO`) names a class, whose arguments are options of their own
    (`--method.lr 0.1`). The classes and `--config` files in `argv` decide which options there are.
    """

    def __init__(self, *, argv: Sequence[str] = (), **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(**options | {"allow_abbrev": False})
        self.argv = list(argv)
        self.source: str | None = None  # the file whose options are parsed, if it is not the command line
        self.choices: list[Choices] = []
        self.read_before: dict[str, argparse.Action] = {}  # options whose values decide which other options there are
        self.needed: list[str] = []
        self.given = Namespace()  # values from files
        self.adapt: Callable[[Namespace, Namespace], None] | None = None
        """Called with the values from files and all values, to fit one to the other."""

    # Options

    def add_options(self, function: Callable[..., Any], key: str = "", *, skip: Collection[str] = ()) -> None:
        """Add an option for each parameter of a function or class, except those in `skip`.

        With a key, the options of a class are `--key.name`, and the namespace holds an object of the class at the key.
        """
        self.add_choices(Choices(function, key, line=last_values(option_values(self.argv)), skip=skip))

    def add_object(self, key: str, base: type, default: object, about: str) -> None:
        """Add an option for an object of a class: `--key` names the class, `--key.name` its arguments."""
        choices = Choices(lambda: None, line=last_values(option_values(self.argv)))
        choices.open(key, Slot(base, default is None, default, about))
        self.add_choices(choices)

    def add_config_options(
        self, function: Callable[..., Any], *, positional: str, only: Collection[str] | None = None
    ) -> None:
        """Add the options of a function and `--config`, and read the files that the command line names with it.

        Args:
            function: A function with types and an Args section in its docstring.
            positional: The parameter that is given without dashes. A file may give it as well.
            only: The parameters that get options; a file may hold the others, which has no effect. By default all.
        """
        line = option_values(self.argv)
        skip = set() if only is None else set(inspect.signature(function).parameters) - {positional, *only}
        choices = Choices(function, line=last_values(line), skip=skip)
        for name in line.get("config", ()):
            if name is None:
                raise ValueError("--config needs a value: a recipe such as small/dino or a YAML file")
            choices.read(read_options(name), name)
        place = choices.values.pop(positional, None)
        choices.skip = {positional, *skip}
        self.add_argument(positional, nargs="?", default=place, help=argument_help(function, positional))
        self._add_read_before(self._optionals, "config", "RECIPE", "A recipe such as small/dino, or a YAML file.")
        self.add_choices(choices)
        self.given = Parser().parse_files(choices)

    def add_choices(self, choices: Choices, *, values_only: bool = False) -> None:
        """Add the options of a function or class and of all classes that are chosen for it.

        `values_only`: without the options that name these classes.
        """
        self.choices.append(choices)
        owners = {choices.key: choices.function} | choices.kinds
        for key, owner in owners.items():
            if owner is not None:
                title = f"{key} options ({owner.__name__})"
                group = self.add_argument_group(title, summary(owner)) if key else self
                self._add_arguments(group, choices, owner, key, values_only)
        self.set_defaults(choices.defaults)

    def _add_arguments(
        self, group: Any, choices: Choices, owner: Callable[..., Any], key: str, values_only: bool
    ) -> None:
        prefix = f"{key}." if key else ""
        inner = {name[len(prefix) :]: slot for name, slot in choices.slots.items() if name.rpartition(".")[0] == key}
        for name, slot in () if values_only else inner.items():
            place = prefix + name
            self._add_read_before(
                self._optionals if group is self else group,
                place,
                "CLASS" if inspect.isabstract(slot.base) or not slot.optional else "null",
                slot.about,
            )
            group.add_argument(f"--{place}.help", action=ClassHelp, slot=slot, chosen=choices.kinds.get(place))
        add = group.add_class_arguments if isinstance(owner, type) else group.add_function_arguments
        skip = {*inner, *(choices.skip if key == choices.key else ())}
        for dest in add(owner, key or None, as_group=False, skip=skip, fail_untyped=False):
            action = next(action for action in self._actions if action.dest == dest)
            if action.required:  # checked when a file and the command line have both been read
                action.required = False
                self.needed.append(dest)

    def _add_read_before(self, group: argparse._ArgumentGroup, key: str, metavar: str, about: str) -> None:
        """Show an option in the help that the parser itself never meets: `parse_args` leaves it out."""
        self.read_before[key] = argparse.Action([f"--{key}"], key, metavar=metavar, help=about)
        group._group_actions.append(self.read_before[key])

    # Values

    def read(self) -> Namespace:
        """The values of all options, with an object wherever a class was chosen."""
        self.name_lists()
        depths = {option: list_depth(action) for option, action in self._option_string_actions.items()}
        args = join_lists(without_options(self.argv, self.read_before), depths)
        given = self.given.clone()
        values = self.build(self.instantiate(self.parse_args(args, self.given)))
        if self.adapt is not None:
            self.adapt(given, values)
        return values

    def name_lists(self) -> None:
        """Let the help show lists of numbers in the way they are written."""
        for action in self._actions:
            # Without jsonargparse's `--list+ item`, which appends to a list.
            action.option_strings = [option for option in action.option_strings if not option.endswith("+")]
            if list_depth(action):
                action.metavar = "N [N ...]"

    def parse_files(self, choices: Choices) -> Namespace:
        """The values that files give, checked and of their types. A mistake names its file."""
        self.add_choices(choices, values_only=True)
        known = option_names(self)
        namespace = Namespace()
        for key, value in choices.values.items():
            self.source = choices.sources[key]
            if key not in known:
                raise ValueError(f"{self._where()}{unknown(key, known, '')}")
            if value is None and not takes_null(self._option_string_actions[f"--{key}"]):
                self.error(f'Parser key "{key}": Got value: null')  # which jsonargparse takes for not given
            one = Namespace()
            one[key] = value
            namespace.update(self.parse_object(one, defaults=False))
        return namespace

    def build(self, namespace: Namespace) -> Namespace:
        """The namespace with an object wherever a class was chosen."""
        for choices in self.choices:
            for key, slot in choices.slots.items():
                if key not in choices.kinds:
                    names = ", ".join(known_classes(slot.base))
                    raise ValueError(f"{self._where()}the option {self._dashes}{key} is missing: choose one of {names}")
        for dest in self.needed:
            if namespace.get(dest) is None:
                raise ValueError(f"{self._where()}the option {self._dashes}{dest} is missing")
        for choices in self.choices:
            choices.build(namespace)
        return namespace

    # Messages

    @property
    def _dashes(self) -> str:
        return "--" if self.source is None else ""

    def _where(self) -> str:
        return "" if self.source is None else f"{self.source!r}: "

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        text = sentence(message, self, [*option_names(self), *self.read_before], self._dashes)
        for choices in self.choices:
            for key in choices.slots:
                if choices.kinds.get(key) is None and f" {self._dashes}{key}." in text:
                    state = "is null" if key in choices.kinds else "is missing"
                    text = f"{text.partition(':')[0]}, since {self._dashes}{key} {state}"
        raise ValueError(self._where() + text) from ex


class ClassHelp(argparse.Action):
    """`--method.help DINO`: the options of one class."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        self.key = dest.removesuffix(".help")
        self.slot, self.chosen = options.pop("slot"), options.pop("chosen")
        about = f"Show the options of a {self.key.rpartition('.')[2]} and exit."
        options |= {"nargs": "?", "metavar": "CLASS", "default": argparse.SUPPRESS, "help": about}
        super().__init__(option_strings, argparse.SUPPRESS, **options)

    def __call__(self, parser: Any, _namespace: Any, name: Any, _option: str | None = None) -> None:
        kind = find_class(name, self.slot.base, what=self.key) if name else self.chosen
        if kind is None:
            names = ", ".join(known_classes(self.slot.base))
            raise ValueError(f"--{self.key}.help needs a class: choose one of {names}")
        shown = Parser(prog=parser.prog, usage=argparse.SUPPRESS, add_help=False)
        shown.add_options(kind, self.key)
        shown.name_lists()
        shown.print_help()
        parser.exit()
