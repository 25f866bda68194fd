"""`hirl images`: the content of a set of images, as a table and as a contact sheet."""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.cli.command import Command
from hirl.cli.sheets import check_sheet, print_skipped, save_sheet, sheet_options
from hirl.config import PositiveInt
from hirl.config.parser import Parser
from hirl.files import expanded

if TYPE_CHECKING:
    from hirl.data import ImageSet
    from hirl.data.sources.image_set import BadImage

MOST_LISTED = 20  # unreadable files


def options(parser: Parser) -> None:
    parser.add_argument("source", help="A folder, a .npz file, or a known name such as shapes or cifar10.")
    parser.add_argument("--split", help="The part to show: train, val, test …; by default the training split.")
    parser.add_argument("--root", type=Path, help="The folder that holds a torchvision data set.")
    parser.add_argument("--download", action="store_true", help="Download a missing torchvision data set.")
    parser.add_argument(
        "--unread",
        action="store_true",
        help="Count files by their names, without reading them: quick, but not checked.",
    )
    parser.add_argument("--tile", type=PositiveInt, default=64, help="Side of an image on the sheet in pixels.")
    parser.add_argument("--columns", type=PositiveInt, default=4, help="Images per class on the sheet.")
    sheet_options(parser, required=False)


def run(config: Namespace) -> None:
    import torch

    from hirl.data import Skipped, open_images
    from hirl.data.sources.image_set import Subset
    from hirl.explore import class_sheet
    from hirl.explore.readable import unreadable_images
    from hirl.terminal.progress import progress_bars

    check_sheet(config)
    images = open_images(config.source, split=config.split, root=config.root, download=config.download)
    count, name, unreadable = len(images), images.name, []
    if not config.unread:
        with progress_bars() as progress:
            unreadable = unreadable_images(images, progress=progress)
    if unreadable:
        counted = torch.ones(count, dtype=torch.bool)
        counted[[bad.index for bad in unreadable]] = False
        images = Subset(images, counted.nonzero().flatten())
        images.name = name
    print_images(images)
    if images.pixels is None:
        print_readable(count, unreadable, read=not config.unread)
    print_other_files(config.source)
    if config.out is not None:
        if len(images) == 0:
            raise ValueError(f"none of the images of {config.source} can be read: there is nothing to draw")
        skipped = Skipped()
        save_sheet(class_sheet(images, tile=config.tile, columns=config.columns, skipped=skipped), config.out)
        print_skipped(skipped, "crossed out on the sheet")


IMAGES = Command(
    "images",
    "list the classes of a set of images, and draw a contact sheet",
    options,
    run,
    examples={"hirl images photos/ --out sheet.png": "the classes of a folder, and a contact sheet"},
    guide="data.md",
)


def print_other_files(source: str) -> None:
    """Print how many files of a folder are not counted as images, and why."""
    from hirl.data.sources.decode import HEIF, is_image_name

    folder = expanded(source)
    if not folder.is_dir():
        return
    names = (name.lower() for _, _, files in os.walk(folder) for name in files if not name.startswith("."))
    others = Counter(Path(name).suffix for name in names if not is_image_name(name))
    if others:
        reasons = dict.fromkeys(HEIF, "install pillow-heif to read them")
        shown = (
            f"{count:,} {suffix or 'without extension'} ({reasons.get(suffix, 'not an image format')})"
            for suffix, count in others.most_common()
        )
        print(f"Not counted: {', '.join(shown)}")


def print_readable(count: int, unreadable: Sequence[BadImage], *, read: bool) -> None:
    """Print how many images can be read, how that is known, and which cannot be read, with the reason."""
    if not read:
        print("Files were counted by their names and not read: some may be unreadable")
        return
    print(f"{count - len(unreadable):,} of {count:,} files can be read: every one was decoded to its end")
    if unreadable:
        print(f"Unreadable, and not counted above: {len(unreadable):,}")
        for bad in unreadable[:MOST_LISTED]:
            print(f"  {bad}")
        if len(unreadable) > MOST_LISTED:
            print(f"  and {len(unreadable) - MOST_LISTED:,} more")


def print_images(images: ImageSet) -> None:
    """Print a row per label level, finest first: classes, images per class, and the first class names."""
    title = f"{images.name}: {len(images):,} images"
    if images.pixels is not None:
        height, width = images.pixels.shape[-2:]
        title += f" of {width} × {height} pixels"
    if images.labels is None:
        Console().print(f"{title}, unlabelled", markup=False, highlight=False)
        return
    table = Table(title=escape(title), title_justify="left")
    for heading in ("level", "classes", "fewest", "median", "most", "names"):
        table.add_column(heading, justify="left" if heading == "names" else "right")
    for level, names in enumerate(images.label_names):
        counts = images.labels[:, level].bincount(minlength=len(names))
        figures = [len(names), int(counts.min()), int(counts.median()), int(counts.max())]
        few = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        table.add_row(str(level), *(f"{figure:,}" for figure in figures), escape(few))
    Console().print(table)
