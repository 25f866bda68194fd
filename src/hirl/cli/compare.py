"""`hirl compare`: base and HIRL arms of recipes × seeds, trained, evaluated and put into the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from jsonargparse import Namespace

from hirl.cli.command import Command
from hirl.cli.pretrain import exit_if_stopped
from hirl.config import import_class
from hirl.config.parser import Parser


def compare_options(parser: Parser) -> None:
    from hirl.evals import EVALUATIONS
    from hirl.studies.compare import compare

    parser.add_argument("data", help="Labelled images: a folder, a .npz file, or a known name such as shapes.")
    parser.add_argument("recipes", nargs="+", help="Recipes such as small/dino, or YAML files of options.")
    parser.add_options(compare, skip={"data", "recipes", "tasks", "arms", "ablate", "classes"})
    parser.add_argument("--tasks", nargs="+", default=["knn"], help="Evaluations, as for hirl evaluate.")
    about = "Arms of HIRL in place of the recipe's, each a name and its settings: 'paper: weight=1' 'HIRL:'."
    parser.add_argument("--arms", nargs="+", default=[], help=about)
    about = "Further arms that change one setting each: levels=1000,200,30 weight=10 builder.order=bottom-up."
    parser.add_argument("--ablate", nargs="+", default=[], help=about)
    about = "Methods and tree builders outside hirl that recipes or arms name, as package.module.Class."
    parser.add_argument("--classes", nargs="+", default=[], help=about)
    for name, kind in EVALUATIONS.items():
        parser.add_options(kind, name)


def run_compare(config: Namespace) -> None:
    from hirl.evals import EVALUATIONS, find_evaluation
    from hirl.studies.compare import compare

    options = {name: value for name, value in vars(config).items() if name not in EVALUATIONS} | {
        "tasks": [config[find_evaluation(name).name] for name in config.tasks],
        "arms": named_arms(config.arms),
        "ablate": ablation(config.ablate),
        "classes": [import_class(path) for path in config.classes],
    }
    with exit_if_stopped():
        folder = compare(**options)
    print(f"runs and tables are in {folder}")


def named_arms(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`paper: weight=1 levels=300,30` as settings by the name of the arm."""
    arms: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, colon, settings = text.partition(":")
        if not name.strip() or not colon:
            raise ValueError(f"--arms {text!r} must be a name, a colon and settings, such as 'paper: weight=1'")
        if name.strip() in arms:
            raise ValueError(f"--arms names the arm {name.strip()!r} twice")
        found = [_setting(setting, "--arms") for setting in settings.split()]
        arms[name.strip()] = dict(found)
        if len(arms[name.strip()]) < len(found):
            raise ValueError(f"--arms {text!r} gives a setting twice")
    return arms


def ablation(settings: Sequence[str]) -> dict[str, list[Any]]:
    """`levels=300,30 negatives=100` as values to try, by the name of the setting."""
    tried: dict[str, list[Any]] = {}
    for setting in settings:
        name, value = _setting(setting, "--ablate")
        tried.setdefault(name, []).append(value)
    return tried


def _setting(text: str, option: str) -> tuple[str, Any]:
    """`levels=300,30` as a name and its value: a number, a list of numbers, true, false, null or a name."""
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise ValueError(f"{option} {text!r} must be a setting and its value, such as levels=1000,200,30 or weight=10")
    if name == "levels" and value != "null":
        value = f"[{value}]"
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ValueError(f"{option} {text!r} has a value that cannot be read") from error


COMPARE = Command("compare", "train and evaluate baseline and HIRL side by side", compare_options, run_compare)
