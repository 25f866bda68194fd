"""`hirl sample`: a balanced, diverse subset of the images without copies, for example to label first."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Literal

from hirl.cli.collection import collection_options, open_from_options
from hirl.cli.command import Command, check_absent, check_new
from hirl.config import NonNegativeInt, PositiveInt
from hirl.config.parser import Parser

SIZE = 200  # images to choose by default


def options(parser: Parser) -> None:
    collection_options(parser)
    parser.add_argument(
        "--size",
        type=PositiveInt,
        help="Images to choose; by default 200, or all if there are fewer. Copies (see hirl duplicates) count as "
        "one image; only the file it keeps can be chosen.",
    )
    parser.add_argument(
        "--pick",
        type=Literal["typical", "spread", "unsure"],
        default="typical",
        help="Which images of a leaf: the most typical, images far from each other, or those nearest to another leaf.",
    )
    parser.add_argument(
        "--seed", type=NonNegativeInt, default=0, help="Seed of the choice between branches of equal size."
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="The list (.txt, .csv, .json or .parquet); by default sample_SIZE.txt in the run's folder.",
    )
    parser.add_argument("--links", type=Path, help="A new folder to fill with links to the images, instead of a list.")
    parser.add_argument("--overwrite", action="store_true", help="Replace a list or a folder of links that exists.")


def run(config: Namespace) -> None:
    from hirl.explore.file_lists import (
        check_list,
        check_unchanged,
        has_line_break,
        image_rows,
        write_links,
        write_list,
    )
    from hirl.explore.sample import sample_images, without_copies
    from hirl.explore.subjects import default_folder
    from hirl.files import atomic_folder, check_parent, check_replaceable
    from hirl.terminal.progress import progress_bars

    if config.out is not None and config.links is not None:
        raise ValueError("--out and --links are both given, but must not be: write either a list or a folder of links")
    if config.links is not None:
        check_parent(config.links)
        check_absent(config.links, overwrite=config.overwrite, option="--links")
        check_replaceable(config.links, Path.is_symlink, content="links alone")
    elif config.out is not None:
        check_list(config.out)
        check_new(config.out, overwrite=config.overwrite)
    collection = open_from_options(config)
    if collection.tree_note:
        print(collection.short_note)
    with progress_bars() as progress:
        different, how = without_copies(collection, device=config.device, progress=progress)
    if copies := len(collection) - len(different):
        print(
            f"{copies:,} of {len(collection):,} images are copies of others, or links to them, and are not chosen "
            f"(copies found {how})"
        )
    size = min(SIZE, len(different)) if config.size is None else config.size
    chosen = sample_images(collection, size, pick=config.pick, seed=config.seed, images=different)
    paths = [collection.images.path(index) for index in chosen]
    if config.links is not None:
        with atomic_folder(config.links) as aside:
            write_links(aside, paths)
        print(f"Linked {len(chosen):,} of {len(collection):,} images in {config.links}")
        return
    out = config.out
    if out is None:
        suffix = ".csv" if has_line_break(paths) else ".txt"
        out = default_folder(config.subject, "sample", encoder=config.encoder).with_name(f"sample_{size}{suffix}")
    rows = image_rows(collection, chosen)
    if not config.overwrite:
        check_unchanged(out, rows)
    write_list(out, rows)
    print(f"Wrote {len(chosen):,} of {len(collection):,} images to {out}")


SAMPLE = Command(
    "sample",
    "choose a balanced, diverse subset of the images through the tree, without copies",
    options,
    run,
    examples={"hirl sample photos/ --size 200": "a balanced, diverse subset of the images, to label first"},
    guide="explore.md#samples",
)
