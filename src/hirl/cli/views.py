"""`hirl views`: a contact sheet of the views that training with a method would use."""

from __future__ import annotations

import json
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from hirl.cli import pretrain
from hirl.cli.command import Command
from hirl.cli.sheets import check_sheet, print_skipped, save_sheet, sheet_options, source_options

LARGEST_VIEW = 1024  # pixels
RECIPE_OPTIONS = ("method", "image_size", "channels", "split", "seed")  # those that views depend on
RECIPE_SOURCE = "recipe_source"  # an option without help: the images that a recipe names


def views_options(parser: ArgumentParser) -> None:
    from hirl.methods import Method

    source_options(parser, required=False)
    parser.add_argument("--config", action="config", help="a recipe such as small/dino, or the config.yaml of a run")
    parser.add_argument("--method", type=Method, help="a method's name with its options, as in hirl pretrain")
    parser.add_argument(
        "--image_size",
        type=PositiveInt,
        help="side of a global view in pixels; by default that of small equal-sized images, else 224",
    )
    parser.add_argument("--channels", type=int, default=3, help="3, or 1 for greyscale")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the run")
    parser.add_argument("--epoch", type=NonNegativeInt, default=0, help="epoch of the run, counted from 0")
    parser.add_argument("--rows", type=PositiveInt, default=6, help="number of images, spread over the set")
    parser.add_argument("--tile", type=PositiveInt, default=112, help="side of a global view on the sheet in pixels")
    parser.add_argument(f"--{RECIPE_SOURCE}", help=SUPPRESS)
    sheet_options(parser, required=True)


def prepared(arguments: Sequence[str]) -> list[str]:
    """The command line with the recipe's file replaced by those of its options that views depend on."""
    import yaml

    line = pretrain.prepared(arguments)
    for place in (place + 1 for place, argument in enumerate(line[:-1]) if argument == "--config"):
        recipe = yaml.safe_load(Path(line[place]).read_text(encoding="utf-8")) or {}
        options = {name: recipe[name] for name in RECIPE_OPTIONS if recipe.get(name) is not None}
        line[place] = json.dumps(options | ({RECIPE_SOURCE: recipe["data"]} if "data" in recipe else {}))
    return line


def run_views(config: Namespace) -> None:
    from hirl.data import Skipped, in_memory, open_images
    from hirl.explore import view_sheet
    from hirl.methods.argument_ranges import check_ranges

    check_sheet(config)
    source = config.source if config.source is not None else config[RECIPE_SOURCE]
    if source is None or config.method is None:
        missing = "images" if source is None else "a method"
        raise ValueError(f"views needs {missing}: hirl views FOLDER --method METHOD --out FILE")
    check_ranges(config.method)
    skipped = Skipped()
    opened = open_images(
        source, split=config.split, channels=config.channels, root=config.root, download=config.download
    )
    images = in_memory(opened, skipped=skipped)  # as training does: it decides the default size and how crops are made
    size = config.image_size or images.default_size
    if size > LARGEST_VIEW:
        raise ValueError(f"--image_size is {size}, but a contact sheet shows views of at most {LARGEST_VIEW} pixels")
    sheet = view_sheet(
        images,
        config.method.views(size),
        rows=config.rows,
        seed=config.seed,
        epoch=config.epoch,
        tile=config.tile,
        title=f"{type(config.method).__name__}, {size} px",
        skipped=skipped,
    )
    save_sheet(sheet, config.out)
    print_skipped(skipped)


VIEWS = Command("views", "draw the views of your images that a method trains on", views_options, run_views, prepared)
