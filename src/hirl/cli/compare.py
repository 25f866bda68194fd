"""`hirl compare`: base and HIRL arms of recipes × seeds, trained, evaluated and put into the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    parser.add_options(compare, skip={"data", "recipes", "tasks", "ablate", "classes"})
    parser.add_argument("--tasks", nargs="+", default=["knn"], help="Evaluations, as for hirl evaluate.")
    about = "Arms of HIRL to compare instead of the recipe's: levels=1000,200,30 levels=300,30 negatives=100."
    parser.add_argument("--ablate", nargs="+", default=[], help=about)
    about = "Methods and other classes outside hirl that the recipes name, as package.module.Class."
    parser.add_argument("--classes", nargs="+", default=[], help=about)
    for name, kind in EVALUATIONS.items():
        parser.add_options(kind, name)


def run_compare(config: Namespace) -> None:
    from hirl.evals import EVALUATIONS, find_evaluation
    from hirl.studies.compare import compare

    options = {name: value for name, value in vars(config).items() if name not in EVALUATIONS} | {
        "tasks": [config[find_evaluation(name).name] for name in config.tasks],
        "ablate": ablation(config.ablate),
        "classes": [import_class(path) for path in config.classes],
    }
    with exit_if_stopped():
        folder = compare(**options)
    print(f"runs and tables are in {folder}")


def ablation(settings: Sequence[str]) -> dict[str, list[Any]]:
    """`levels=300,30 negatives=100` as values to try, by the name of the setting."""
    tried: dict[str, list[Any]] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        numbers = value.split(",")
        if name not in ("levels", "negatives") or not all(number.isdigit() for number in numbers):
            raise ValueError(f"--ablate {setting!r} must be levels=1000,200,30 or negatives=100, with whole numbers")
        if name == "negatives" and len(numbers) > 1:
            raise ValueError(f"--ablate {setting!r} has {len(numbers)} numbers: write negatives={numbers[0]} for each")
        tried.setdefault(name, []).append(tuple(map(int, numbers)) if name == "levels" else int(value))
    return tried


COMPARE = Command("compare", "train and evaluate baseline and HIRL side by side", compare_options, run_compare)
