"""`hirl bench`: how fast this machine trains, what the time goes to, and which settings would make it faster."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from hirl.cli.command import Command
from hirl.config import NonNegativeInt, PositiveFloat
from hirl.config.parser import Parser

MOST = 2_500  # images that are trained on: more would take longer, for the pass over all of them
SMALL = "small/"
BUSY = 0.5  # load per core
VARIANT = 0.4  # of the time of a recipe, for each change of the fastest


def bench_options(parser: Parser) -> None:
    about = "Images to train on: a folder, or anything else that `hirl pretrain` takes; by default built-in ones."
    parser.add_argument("data", nargs="?", default="shapes", help=about)
    about = "Recipes to measure, by name or file; by default all of small/."
    parser.add_argument("--recipes", nargs="+", help=about)
    parser.add_argument("--seconds", type=PositiveFloat, default=10.0, help="Seconds of training steps per recipe.")
    parser.add_argument("--accelerator", default="auto", help="Type of device: auto, cpu, cuda or mps.")
    about = "Processes that read images; by default as in `hirl pretrain`."
    parser.add_argument("--workers", type=NonNegativeInt, help=about)


def run_bench(config: Namespace) -> None:
    import torch

    from hirl.data import in_memory, open_images
    from hirl.data.sources.image_set import Subset
    from hirl.recipes import recipe_names
    from hirl.terminal.progress import progress_bars
    from hirl.terminal.tables import print_tables
    from hirl.train.machine import read_machine
    from hirl.train.recipe import recipe
    from hirl.train.speed import Speed, measure_speed
    from hirl.train.speed_advice import advice, fastest, speed_table, variant_table, variants

    found = open_images(config.data)
    N = len(found)
    images = in_memory(found if N <= MOST else Subset(found, torch.arange(MOST) * N // MOST))

    def read(name: str) -> dict[str, Any]:  # anew for each measurement, which builds its networks
        return _fitted(recipe(name), name, len(images), images.default_size, config.workers)

    names = config.recipes or [name for name in recipe_names() if name.startswith(SMALL)]
    recipes = {name: read(name) for name in names}
    machine = read_machine(config.accelerator)
    print(f"Training on {len(images):,} of the {N:,} images of {found.name}, on {machine}.")
    if machine.device == "cpu" and (load := os.getloadavg()[0]) > BUSY * machine.cores:
        print(f"Other processes use the machine (load {load:.1f}): it is faster when they have ended.")
    speeds: dict[str, Speed] = {}
    changed: dict[str, Speed] = {}
    with progress_bars() as progress:
        for name in names:
            progress("recipes", len(speeds), len(names))
            speeds[name] = measure_speed(read(name), images, seconds=config.seconds, accelerator=config.accelerator)
        progress("recipes", len(speeds), len(names))
        best = fastest(speeds)
        changes = variants(recipes[best], speeds[best], len(images))
        for option, change in changes.items():
            progress(f"changes of {best}", len(changed), len(changes))
            options = read(best) | change
            seconds = VARIANT * config.seconds
            changed[option] = measure_speed(options, images, seconds=seconds, accelerator=config.accelerator)
        progress(f"changes of {best}", len(changed), len(changes))
    tables = {"An epoch with HIRL": speed_table(speeds, recipes, N)}
    print_tables(tables | {f"{best} with one change": variant_table(speeds[best], changed)})
    for line in advice(speeds, recipes, changed, machine, N):
        print(f"- {line}")


def _fitted(options: dict[str, Any], name: str, N: int, side: int, workers: int | None) -> dict[str, Any]:
    """A recipe's options with nothing that is measured left open, and a batch of at most N images."""
    from hirl.hierarchy.settings import Hierarchy
    from hirl.train.resolve import BATCH_SIZE, EPOCHS

    if options["method"].is_adapted:
        raise ValueError(f"the recipe {name!r} is for features of a frozen encoder: name recipes that train networks")
    defaults: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "image_size": side, "precision": "32-true"}
    filled = defaults | {name: value for name, value in options.items() if value is not None}
    hierarchy = options.get("hierarchy") or Hierarchy()
    return filled | {"batch_size": min(N, filled["batch_size"]), "hierarchy": hierarchy, "workers": workers}


BENCH = Command("bench", "measure how fast this machine trains, and what would speed it up", bench_options, run_bench)
