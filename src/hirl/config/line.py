"""The command line before it is parsed: the options that decide what there is to parse, and lists of numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
NUMBERS = re.compile(rf"{NUMBER}(,\s*{NUMBER})*")  # 30 or 3000,300,30


def option_values(argv: Sequence[str]) -> dict[str, list[str | None]]:
    """Every option on a command line with its values, one for each time it is given; None where none follows."""
    found: dict[str, list[str | None]] = {}
    for place, arg in enumerate(argv):
        if arg.startswith("--"):
            name, equals, value = arg[2:].partition("=")
            follows = argv[place + 1] if place + 1 < len(argv) and not argv[place + 1].startswith("--") else None
            found.setdefault(name, []).append(value if equals else follows)
    return found


def last_values(options: dict[str, list[str | None]]) -> dict[str, str | None]:
    return {name: values[-1] for name, values in options.items()}


def without_options(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """The command line without some options and the value of each."""
    remaining: list[str] = []
    skipped = False
    for arg in argv:
        option, equals, _ = arg.partition("=")
        if option.startswith("--") and option[2:] in names:
            skipped = not equals
        elif skipped and not arg.startswith("--"):
            skipped = False
        else:
            remaining.append(arg)
    return remaining


def join_lists(argv: Sequence[str], depths: Mapping[str, int]) -> list[str]:
    """The command line with every list of numbers as one argument, the only way in which jsonargparse reads a list.

    `--levels 300 30` and `--levels 300,30` become `--levels=[300,30]`. An option for a list of lists has one of them
    per argument: `--levels 300,30 300,100,10`. `depths`: 1 for options that take a list, 2 for a list of lists.
    """
    joined: list[str] = []
    place = 0
    while place < len(argv):
        option, equals, value = argv[place].partition("=")
        end = place = place + 1
        while not equals and end < len(argv) and NUMBERS.fullmatch(argv[end]):
            end += 1
        numbers = [value] if equals and NUMBERS.fullmatch(value) else list(argv[place:end])
        if not depths.get(option) or not numbers:
            joined.append(argv[place - 1])
            continue
        items = [f"[{number}]" for number in numbers] if depths[option] > 1 else numbers
        joined.append(f"{option}=[{','.join(items)}]")
        place = end
    return joined
