"""`hirl views`: draw a contact sheet of the views that a method trains on."""

from __future__ import annotations

from argparse import Namespace

from hirl.cli.command import Command
from hirl.cli.sheets import check_sheet, print_skipped, save_sheet, sheet_options
from hirl.config import NonNegativeInt, PositiveInt
from hirl.config.classes import known_classes
from hirl.config.parser import Parser

LARGEST_VIEW = 1024  # pixels
SHARED = ("method", "image_size", "channels", "split", "seed")  # the options of `hirl pretrain` that views depend on


def options(parser: Parser) -> None:
    from hirl.train.pretrain import pretrain

    parser.add_config_options(pretrain, positional="data", only=SHARED)
    parser.add_argument("--epoch", type=NonNegativeInt, default=0, help="Epoch of the run, counted from 0.")
    parser.add_argument("--rows", type=PositiveInt, default=6, help="Number of images, spread over the set.")
    parser.add_argument("--tile", type=PositiveInt, default=112, help="Side of a global view on the sheet, in pixels.")
    sheet_options(parser, required=True)


def run(config: Namespace) -> None:
    from hirl.data import Skipped, in_memory, open_images
    from hirl.explore import view_sheet
    from hirl.methods.argument_ranges import check_ranges
    from hirl.methods.base import Method

    check_sheet(config)
    if config.data is None:
        raise ValueError("the images are missing: hirl views FOLDER --method METHOD --out FILE")
    if config.image_size is not None and config.image_size < 1:
        raise ValueError(f"image_size is {config.image_size}, but must be at least 1")
    if config.seed < 0:
        raise ValueError(f"seed is {config.seed}, but must be at least 0")
    if config.method is None:
        names = ", ".join(known_classes(Method))
        raise ValueError(f"the option --method is missing: choose one of {names}, or a recipe with --config")
    check_ranges(config.method)
    skipped = Skipped()
    opened = open_images(config.data, split=config.split, channels=config.channels)
    images = in_memory(opened, skipped=skipped)  # as in training: it decides the default size and how crops are made
    size = images.default_size if config.image_size is None else config.image_size
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


VIEWS = Command(
    "views",
    "draw the views of your images that a method trains on",
    options,
    run,
    examples={"hirl views photos/ --method DINO --out views.png": "the views that a method trains on"},
    guide="views.md",
)
