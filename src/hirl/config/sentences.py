"""Error messages of the parser as one sentence: the option, the rule, the choices, the option that was meant."""

from __future__ import annotations

import difflib
import re
from argparse import ArgumentParser

from hirl.config.hints import hint_of, rule

# The few forms in which jsonargparse and argparse report a mistake.
MISSING = re.compile(r"the following arguments are required: (.+)")
UNKNOWN = re.compile(r"unrecognized arguments: (\S+).*|(?:Option|Group '[^']+' does not accept option) '([^']+)'.*")
INVALID = re.compile(r'Parser key "([^"]+)"(?: element \d+)?: (.*)')
VALUE = re.compile(r".*(?:Got|Given) value: (.*)|Not of type \w+: (?:.*: )?(.+?)(?: does not conform.*| not an? \w+)?")
ARGUMENT = re.compile(r"argument ([^:]+): (.*)")


def sentence(message: str, parser: ArgumentParser, known: list[str], dashes: str = "--") -> str:
    """Reword an error message of argparse or jsonargparse for a user; other messages stay as they are.

    Args:
        message: The message, in any number of lines.
        parser: The parser that reports it.
        known: The names of all options.
        dashes: What precedes the name of an option: nothing if it was read from a file.
    """
    message = " ".join(message.split())
    actions = {action.dest: action for action in parser._actions}
    if match := MISSING.fullmatch(message):
        name = match[1].partition(",")[0]
        positional = name in actions and not actions[name].option_strings
        return f"the argument {name} is missing" if positional else f"the option {dashes}{name} is missing"
    if match := UNKNOWN.fullmatch(message):
        name = match[1] or match[2]
        if match[1] and not name.startswith("-"):
            return f"the argument {name!r} is one too many"
        return unknown(name.lstrip("-").partition("=")[0], known, dashes)
    if match := INVALID.fullmatch(message):
        option = match[1] if match[1] in actions and not actions[match[1]].option_strings else f"{dashes}{match[1]}"
        wanted = rule(hint_of(actions[match[1]])) if match[1] in actions else None
        value = VALUE.fullmatch(match[2])
        if wanted is None or value is None:
            return f"{option}: {match[2]}"
        given = value[1] or value[2]
        return f"{option} must be {wanted}, not {'null' if given == 'None' else given}"
    if match := ARGUMENT.fullmatch(message):
        needs = "needs a value" if match[2] in ("expected one argument", "expected at least one argument") else None
        return f"{match[1]} {needs}" if needs else f"{match[1]}: {match[2]}"
    return message


def option_names(parser: ArgumentParser) -> list[str]:
    """All options of a parser without their dashes."""
    names = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    return [name[2:] for name in names if not name.endswith((".help", "+"))]


def unknown(name: str, known: list[str], dashes: str = "--") -> str:
    """The message for an unknown option, with similar ones: `batch_size` for `batch-size`, `method.lr` for `lr`."""
    meant = name.replace("-", "_")
    close = [option for option in known if option.rpartition(".")[2] == meant.rpartition(".")[2]]
    close.sort(key=lambda option: option.count("."))
    close += difflib.get_close_matches(meant, known, n=2, cutoff=0.75)
    choices = " or ".join(f"{dashes}{option}" for option in list(dict.fromkeys(close))[:3])
    return f"there is no option {dashes}{name}" + (f": did you mean {choices}?" if choices else "")
