"""`hirl images` and `hirl views`: what a set of images holds, and what a network sees of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.cli.command import Command, check_new
from hirl.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image

    from hirl.data import ImageSet, Skipped

LARGEST_VIEW = 1024
SHEETS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}


def source_options(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="a folder, a .npz file, or a known name such as shapes or cifar10")
    parser.add_argument("--split", help="train, val, test …; by default the training part")
    parser.add_argument("--root", type=Path, help="the folder that holds a torchvision data set")
    parser.add_argument("--download", action="store_true", help="fetch a torchvision data set that is missing")


def images_options(parser: ArgumentParser) -> None:
    source_options(parser)
    parser.add_argument("--out", type=Path, help="draw a contact sheet into this file (.png, .webp, .jpg)")
    parser.add_argument("--tile", type=PositiveInt, default=64, help="pixels a picture of the sheet")
    parser.add_argument("--columns", type=PositiveInt, default=4, help="pictures a class")
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def images(config: Namespace) -> None:
    from hirl.data import Skipped
    from hirl.explore import class_sheet

    check_sheet(config)
    found = opened(config)
    image_table(found)
    if config.out is not None:
        skipped = Skipped()
        save_sheet(class_sheet(found, tile=config.tile, columns=config.columns, skipped=skipped), config.out)
        tell_skipped(skipped)


def views_options(parser: ArgumentParser) -> None:
    from hirl.data.view_recipes import RECIPES

    source_options(parser)
    parser.add_argument("--method", choices=tuple(RECIPES), required=True, help="whose views")
    parser.add_argument("--out", type=Path, required=True, help="the sheet's file (.png, .webp, .jpg)")
    parser.add_argument("--size", type=PositiveInt, help="of a global view; by default that of small images, else 224")
    parser.add_argument("--rows", type=PositiveInt, default=6, help="images shown, spread over the set")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the views")
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def views(config: Namespace) -> None:
    from hirl.data import Skipped
    from hirl.data.view_recipes import RECIPES
    from hirl.explore import view_sheet

    check_sheet(config)
    found = opened(config)
    size = config.size or (224 if found.pixels is None else min(found.pixels.shape[-2:]))
    if size > LARGEST_VIEW:
        raise ValueError(f"--size is {size}, but a sheet shows views of at most {LARGEST_VIEW} pixels")
    title, skipped = f"{config.method}, {size} px", Skipped()
    recipe = RECIPES[config.method](size)
    save_sheet(view_sheet(found, recipe, rows=config.rows, seed=config.seed, title=title, skipped=skipped), config.out)
    tell_skipped(skipped)


def tell_skipped(skipped: Skipped) -> None:
    if len(skipped):
        print(f"{len(skipped)} of the images shown could not be read and were replaced by the next that could:")
        for bad in skipped:
            print(f"  {bad}")


def opened(config: Namespace) -> ImageSet:
    from hirl.data import open_images

    return open_images(config.source, split=config.split, root=config.root, download=config.download)


def check_sheet(config: Namespace) -> None:
    if config.out is None:
        return
    if config.out.suffix.lower() not in SHEETS:
        raise ValueError(f"a sheet is a picture: --out {str(config.out)!r} must end in one of {', '.join(SHEETS)}")
    check_new(config.out, overwrite=config.overwrite)


def save_sheet(sheet: Image, out: Path) -> None:
    with atomic_write(out) as aside, aside.open("wb") as file:
        sheet.save(file, SHEETS[out.suffix.lower()], quality=80)
    print(f"contact sheet of {sheet.width} × {sheet.height} pixels written to {out}")


IMAGES = Command("images", "tells what a set of images holds, and draws a contact sheet of it", images_options, images)
VIEWS = Command("views", "draws what a method's network sees of your images", views_options, views)


def image_table(images: ImageSet) -> None:
    """Prints a row a label level, finest first: classes, images a class, and the first of their names."""
    title = f"{images.name}: {len(images):,} images"
    if images.pixels is not None:
        height, width = images.pixels.shape[-2:]
        title += f" of {width} × {height} pixels"
    if images.labels is None:
        Console().print(f"{title}, unlabelled", markup=False, highlight=False)
        return
    table = Table(title=escape(title), title_justify="left")
    for heading in ("level", "classes", "fewest", "median", "most", "named"):
        table.add_column(heading, justify="left" if heading == "named" else "right")
    for level, names in enumerate(images.label_names):
        counts = images.labels[:, level].bincount(minlength=len(names))
        figures = [len(names), int(counts.min()), int(counts.median()), int(counts.max())]
        few = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        table.add_row(str(level), *(f"{figure:,}" for figure in figures), escape(few))
    Console().print(table)
