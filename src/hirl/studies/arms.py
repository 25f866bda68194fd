"""The arms of a comparison: the baseline, and HIRL with the settings of the recipe or with some of them changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

from hirl.claims import share_tasks
from hirl.config import to_plain
from hirl.config.parser import load
from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.settings import Hierarchy
from hirl.runs.folder import RunFolder

BASE, HIRL = "base", "HIRL"
SETTINGS = tuple(field.name for field in fields(Hierarchy))
BUILDER = "builder."  # before the name of an argument of the tree builder


def make_arms(
    hierarchy: Hierarchy,
    arms: Mapping[str, Mapping[str, Any]],
    ablate: Mapping[str, Sequence[Any]],
    classes: Collection[type] = (),
) -> dict[str, Hierarchy | None]:
    """Return HIRL's settings per arm, the baseline's None first.

    Args:
        hierarchy: The recipe's settings, which are the arm HIRL if `arms` names none.
        arms: By name of an arm, the settings that it changes; none for the recipe's own.
        ablate: By name of a setting, the values to try: each is an arm.
        classes: Tree builders outside hirl that arms may name.
    """
    changed: dict[str, Mapping[str, Any]] = dict(arms) or {HIRL: {}}
    for name, values in ablate.items():
        for value in values:
            text = "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            if (arm := f"{name}={text}") in changed:
                raise ValueError(f"the arm {arm} is given twice")
            changed[arm] = {name: value}
    for name in arms:
        if "/" in name or "\\" in name:
            raise ValueError(f"the arm {name!r} has a slash in its name, but names of arms become names of folders")
    if BASE in changed:
        raise ValueError(f"an arm cannot be called {BASE}, which is the baseline")
    if len({arm_folder(name) for name in changed}) < len(changed):
        raise ValueError(f"two of the arms {', '.join(changed)} would have the same folder: give them other names")
    made = {name: change(hierarchy, settings, classes, arm=name) for name, settings in changed.items()}
    for (one, mine), (other, theirs) in combinations(made.items(), 2):
        if mine == theirs:
            raise ValueError(f"the arms {one} and {other} have the same settings: leave one of them out")
    return {BASE: None, **made}


def change(
    hierarchy: Hierarchy, settings: Mapping[str, Any], classes: Collection[type] = (), *, arm: str = HIRL
) -> Hierarchy:
    """Return `hierarchy` with other `settings`, those of `arm`; one of its tree builder is called builder.NAME."""
    plain = to_plain(hierarchy)
    if isinstance(named := settings.get("builder"), str):
        settings = {**settings, "builder": {"class_path": named, "init_args": {}}}
    for name, value in sorted(settings.items(), key=lambda setting: setting[0].startswith(BUILDER)):
        if name.startswith(BUILDER):
            plain["builder"] = plain["builder"] or to_plain(HierarchicalKMeans())
            plain["builder"]["init_args"][name.removeprefix(BUILDER)] = to_plain(value)
        elif name in SETTINGS:
            plain[name] = to_plain(value)
        else:
            names = f"{', '.join(SETTINGS)} and {BUILDER}NAME"
            raise ValueError(f"the arm {arm!r}: there is no setting {name!r}: choose from {names}")
    given = settings.get("builder", hierarchy.builder)
    own = [type(given)] if isinstance(given, TreeBuilder) else []
    options = load(Hierarchy, plain, source=f"the arm {arm}", classes=[*classes, *own])
    try:
        return Hierarchy(**options)
    except ValueError as error:
        raise ValueError(f"the arm {arm}: {error}") from error


def arm_folder(name: str) -> str:
    """The arm's name as part of the name of a run's folder."""
    return "".join(letter if letter.isalnum() or letter in "=.-" else "-" for letter in name)


def check_folder(out: Path) -> None:
    """Raise a ValueError unless runs can be put into the folder, which is made if it is missing."""
    if out.is_file():
        raise ValueError(f"out is {str(out)!r}, which is a file: name a folder")
    if RunFolder(out).exists:
        raise ValueError(f"out is {str(out)!r}, which is itself a run: name another folder")
    entries = list(out.iterdir()) if out.is_dir() else []
    own = any(one.name == "tables.md" or one.name.endswith(".claim") or RunFolder(one).exists for one in entries)
    if not own and not all(one.name.startswith(".") for one in entries):
        raise ValueError(
            f"out is {str(out)!r}, which is not empty and has neither runs nor tables of an earlier call: name another "
            "folder"
        )


def next_arms(
    names: Sequence[str], folder: Path, is_done: Callable[[str], bool], *, processes: int
) -> Generator[str, None, None]:
    """The arms to train, each held until the next is asked for: other processes that run the same command take others.

    The `processes` of one run train every arm together, and go through the finished ones together as well: those that
    the first run starts begin with the first arm, whatever has been finished before.
    """
    if processes > 1:
        yield from names
    else:
        yield from share_tasks(names, folder, is_done)
