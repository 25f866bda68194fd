"""`hirl tune`: which levels and negatives give the lowest joint loss on held-out images."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveInt

from hirl.cli.command import Command
from hirl.cli.pretrain import STOPPED, data_of, prepared

OWN: set[str | int] = {"data", "out", "hierarchy"}


def tune_options(parser: ArgumentParser) -> None:
    import hirl.methods  # noqa: F401 (so that methods are found by their names)
    from hirl.hierarchy.settings import Hierarchy
    from hirl.train.pretrain import pretrain

    parser.add_argument("data", nargs="?", help="a folder of images, a .npz file, or a known name such as shapes")
    parser.add_argument(
        "--config", action="config", help="a recipe such as small/dino, or a YAML file of these options"
    )
    parser.add_argument("--out", type=Path, default=Path("tuning"), help="the folder for the runs and the table")
    parser.add_argument("--levels", type=list[list[int]] | None, help="trees to try: [[300, 100, 10], [300, 100, 50]]")
    parser.add_argument("--negatives", nargs="+", type=PositiveInt, help="numbers of negative paths to try")
    parser.add_argument("--held_out", type=PositiveInt | None, help="images for the loss; by default at most 8,000")
    parser.add_argument("--hierarchy", type=Hierarchy, default=Hierarchy(), help="what all choices have in common")
    parser.add_function_arguments(pretrain, skip=OWN, fail_untyped=False)


def run_tune(config: Namespace) -> None:
    from hirl.studies.tune import tune
    from hirl.train.loop import Stopped

    options = {name: value for name, value in vars(config).items() if name not in ("config", "data")}
    if config.negatives is not None:
        options["negatives"] = [int(count) for count in config.negatives]  # of the parser's own kind
    try:
        best = tune(data_of(config, "tune"), **options)
    except Stopped:
        sys.exit(STOPPED)
    sizes = " ".join(map(str, best.levels or ()))
    print(f"the lowest joint loss: --hierarchy.levels {sizes} --hierarchy.negatives {best.negatives}")


TUNE = Command("tune", "searches for levels and negatives as the paper does", tune_options, run_tune, prepared)
