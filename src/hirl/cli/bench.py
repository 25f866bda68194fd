"""`hirl bench`: how fast this machine trains, where the time goes, and which settings would make it faster."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from hirl.cli.command import Command
from hirl.config import NonNegativeInt, PositiveFloat
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.data.sources.image_set import ImageSet
    from hirl.train.speed import TimedRecipe

MOST = 2_500  # images to train on: the passes over all images would take too long with more
SMALL = "small/"
BUSY = 0.5  # load per core above which other processes would slow down the measurement
VARIANT = 0.4  # of --seconds, for each variant of the fastest recipe


def options(parser: Parser) -> None:
    about = "Images to train on: a folder, or anything else that `hirl pretrain` takes; by default the built-in shapes."
    parser.add_argument("data", nargs="?", default="shapes", help=about)
    about = "Recipes to measure, by name or file; by default all of small/."
    parser.add_argument("--recipes", nargs="+", help=about)
    parser.add_argument("--seconds", type=PositiveFloat, default=10.0, help="Seconds of training steps per recipe.")
    parser.add_argument("--accelerator", default="auto", help="Type of device: auto, cpu, cuda or mps.")
    about = "Processes that read images; by default as in `hirl pretrain`."
    parser.add_argument("--workers", type=NonNegativeInt, help=about)


def run(config: Namespace) -> None:
    import torch

    from hirl.data import in_memory, open_images
    from hirl.data.sources.image_set import Subset
    from hirl.recipes import recipe_names
    from hirl.terminal.progress import progress_bars
    from hirl.terminal.tables import print_tables
    from hirl.train.machine import read_machine
    from hirl.train.speed import Speed, measure_speed
    from hirl.train.speed_advice import advice, fastest, speed_table, variant_table, variants

    found = open_images(config.data)
    N = len(found)
    images = in_memory(found if N <= MOST else Subset(found, torch.arange(MOST) * N // MOST))

    names = config.recipes or [name for name in recipe_names() if name.startswith(SMALL)]
    recipes = {name: _fitted(name, images, config.workers) for name in names}
    machine = read_machine(config.accelerator)
    print(f"Training on {len(images):,} of the {N:,} images of {found.name}, on {machine}.")
    if machine.device == "cpu" and (load := os.getloadavg()[0]) > BUSY * machine.cores:
        print(f"Other processes use the machine (load {load:.1f}): training is faster without them.")
    speeds: dict[str, Speed] = {}
    changed: dict[str, Speed] = {}
    with progress_bars() as progress:
        for name in names:
            progress("recipes", len(speeds), len(names))
            speeds[name] = measure_speed(recipes[name], images, seconds=config.seconds, accelerator=config.accelerator)
        progress("recipes", len(speeds), len(names))
        best = fastest(speeds)
        changes = variants(recipes[best], speeds[best], len(images))
        for option, variant in changes.items():
            progress(f"changes of {best}", len(changed), len(changes))
            seconds = VARIANT * config.seconds
            changed[option] = measure_speed(variant, images, seconds=seconds, accelerator=config.accelerator)
        progress(f"changes of {best}", len(changed), len(changes))
    tables = {"An epoch with HIRL": speed_table(speeds, recipes, N)}
    print_tables(tables | {f"{best} with one change": variant_table(speeds[best], changed)})
    for line in advice(speeds, recipes, changed, machine, N):
        print(f"- {line}")


def _fitted(name: str, images: ImageSet, workers: int | None) -> TimedRecipe:
    """The recipe with every option set that affects speed, and with at most as many images per batch as there are."""
    from hirl.train.recipe import recipe
    from hirl.train.resolve import BATCH_SIZE, EPOCHS
    from hirl.train.speed import TimedRecipe

    options = recipe(name)
    if options["method"].has_adapter:
        raise ValueError(f"the recipe {name!r} adapts a frozen encoder, but must train a network, such as small/dino")
    return TimedRecipe(
        method=options["method"],
        hierarchy=options.get("hierarchy"),
        epochs=options.get("epochs") or EPOCHS,
        batch_size=min(len(images), options.get("batch_size") or BATCH_SIZE),
        image_size=options.get("image_size") or images.default_size,
        precision=options.get("precision") or "32-true",
        workers=workers,
    )


BENCH = Command(
    "bench",
    "measure how fast this machine trains, and what would speed it up",
    options,
    run,
    examples={"hirl bench": "how fast this machine trains, and what would speed it up"},
    guide="benchmarks.md#your-own-machine",
)
