"""`hirl compare`: base and HIRL arms of recipes × seeds, trained, evaluated and put into the paper's tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from hirl.cli.command import Command


def compare_options(parser: ArgumentParser) -> None:
    parser.add_argument("data", help="the images, with labels: a folder, a .npz file, or a known name such as shapes")
    parser.add_argument("recipes", nargs="+", help="recipes such as small/dino, or YAML files of options")
    parser.add_argument("--seeds", nargs="+", type=NonNegativeInt, default=[0], help="a pair of runs for each")
    parser.add_argument("--tasks", nargs="+", type=str, default=["knn"], help="evaluations, as of hirl evaluate")
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="the folder for runs and tables")
    about = "HIRL in these ways instead: levels=1000,200,30 levels=300,30 negatives=100"
    parser.add_argument("--ablate", nargs="+", type=str, default=[], help=about)
    parser.add_argument("--test_data", type=str | None, help="the images to test on, where they are elsewhere")
    parser.add_argument("--epochs", type=PositiveInt | None, help="for all recipes; by default their own")
    parser.add_argument("--accelerator", type=str, default="auto", help="auto, cpu, cuda or mps")


def run_compare(config: Namespace) -> None:
    from hirl.cli.pretrain import STOPPED
    from hirl.studies.compare import compare
    from hirl.train.loop import Stopped

    options = {name: value for name, value in vars(config).items() if name not in ("data", "recipes", "ablate")}
    options["seeds"] = [int(seed) for seed in config.seeds]  # of the parser's own kind, which YAML does not know
    options["epochs"] = config.epochs and int(config.epochs)
    try:
        folder = compare(config.data, config.recipes, ablate=ablation(config.ablate), **options)
    except Stopped:
        sys.exit(STOPPED)
    print(f"runs and tables are in {folder}")


def ablation(words: Sequence[str]) -> dict[str, list[Any]]:
    """`levels=300,30 negatives=100` as what is to be tried, by name."""
    tried: dict[str, list[Any]] = {}
    for word in words:
        name, _, value = word.partition("=")
        numbers = value.split(",")
        if name not in ("levels", "negatives") or not all(number.isdigit() for number in numbers):
            raise ValueError(f"--ablate {word!r} must be levels=1000,200,30 or negatives=100, with whole numbers")
        if name == "negatives" and len(numbers) > 1:
            raise ValueError(f"--ablate {word!r} has {len(numbers)} numbers: say negatives={numbers[0]} negatives=…")
        tried.setdefault(name, []).append(tuple(map(int, numbers)) if name == "levels" else int(value))
    return tried


COMPARE = Command("compare", "trains and evaluates base and HIRL side by side", compare_options, run_compare)
