"""`hirl compare`: base and HIRL arms of recipes × seeds, trained, evaluated and put into the paper's tables."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hirl.cli.command import Command
from hirl.cli.evaluate import add_task_options, named_tasks
from hirl.config import import_class, read_options
from hirl.config.parser import Parser


def options(parser: Parser) -> None:
    from hirl.studies.compare import compare

    for option in parser.line.options:
        if (named := option.partition(".")[0]) in ("method", "hierarchy"):
            other = ", or of arms (--arms, --ablate)" if named == "hierarchy" else ""
            raise ValueError(f"--{option} is not an option of compare: it is a setting of recipe files{other}")
    parser.add_argument("data", help="Labelled images: a folder, a .npz file, or a known name such as shapes.")
    parser.add_argument("recipes", nargs="+", help="Recipes such as small/dino, or YAML files of options.")
    parser.add_options(compare, skip={"data", "recipes", "tasks", "arms", "ablate", "classes"})
    parser.add_argument("--tasks", nargs="+", default=["knn"], help="Evaluations, as for hirl evaluate.")
    about = (
        "Arms of HIRL to use instead of the recipe's, each a name and the settings it changes: 'HIRL:' 'light: "
        "weight=1'; or a file of settings, such as paper for those of the paper."
    )
    parser.add_argument("--arms", nargs="+", default=[], help=about)
    about = "Additional arms, each changing one setting: levels=1000,200,30 weight=10 builder.order=bottom-up."
    parser.add_argument("--ablate", nargs="+", default=[], help=about)
    about = "Methods and tree builders outside hirl that recipes or arms name, as package.module.Class."
    parser.add_argument("--classes", nargs="+", default=[], help=about)
    add_task_options(parser, default=())


def run(config: Namespace) -> None:
    from hirl.evals import EVALUATIONS
    from hirl.studies.compare import compare

    options = {name: value for name, value in vars(config).items() if name not in EVALUATIONS} | {
        "tasks": named_tasks(config, config.tasks),
        "arms": named_arms(config.arms),
        "ablate": ablation(config.ablate),
        "classes": [import_class(path) for path in config.classes],
    }
    folder = compare(**options)
    print(f"runs and tables are in {folder}")


def named_arms(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings by arm name, from texts such as `light: weight=1 levels=300,30` or `paper`, the name of a file."""
    arms: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, colon, settings = (part.strip() for part in text.partition(":"))
        if not name or (not colon and "=" in name):
            raise ValueError(f"--arms is {text!r}, but must be a name, a colon and settings, such as 'light: weight=1'")
        file, name = name, Path(name).stem if "/" in name and not colon else name
        if name in arms:
            raise ValueError(f"--arms has the arm {name!r} twice, but names must differ")
        found = [_setting(setting, "--arms") for setting in settings.split()]
        arms[name] = dict(found) if colon else _settings_of_file(file)
        if len(arms[name]) < len(found):
            raise ValueError(f"--arms is {text!r}, but must give each setting once")
    return arms


def _settings_of_file(name: str) -> dict[str, Any]:
    """The hierarchy's settings from a file that must hold nothing else."""
    try:
        options = read_options(name)
    except ValueError as error:
        raise ValueError(f"--arms {name!r}: {error}; to give settings, add a colon to the name: 'HIRL:'") from error
    hierarchy = options.pop("hierarchy", None)
    if options or not isinstance(hierarchy, dict):
        raise ValueError(f"--arms {name!r}: the file of an arm must hold options of hierarchy only")
    return hierarchy


def ablation(settings: Sequence[str]) -> dict[str, list[Any]]:
    """Values to try per setting, from texts such as `levels=300,30` and `negatives=100`."""
    tried: dict[str, list[Any]] = {}
    for setting in settings:
        name, value = _setting(setting, "--ablate")
        tried.setdefault(name, []).append(value)
    return tried


def _setting(text: str, option: str) -> tuple[str, Any]:
    """Name and value from a text such as `levels=300,30`; a number, list of numbers, true, false, null or name."""
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise ValueError(f"{option} is {text!r}, but must be a setting and its value, such as levels=1000,200,30")
    if name == "levels" and value != "null":
        value = f"[{value}]"
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ValueError(f"{option} is {text!r}, but its value must be valid YAML") from error


COMPARE = Command(
    "compare",
    "train and evaluate baseline and HIRL side by side",
    options,
    run,
    examples={"hirl compare shapes small/moco_v2 small/dino": "baseline and HIRL side by side, in tables"},
    guide="training.md#baseline-and-hirl-side-by-side",
)
