"""`hirl tree`: show the tree of images, a run or features as a page, a figure or text."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from hirl.cli.collection import collection_options, open_from_options, output_folder, page_address
from hirl.cli.command import Command
from hirl.cli.with_start import with_start, with_start_option
from hirl.config import PositiveInt
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.explore.collection import Collection


def options(parser: Parser) -> None:
    collection_options(parser)
    parser.add_argument("--out", type=Path, help="The page's folder; by default tree/ in the run's folder.")
    with_start_option(parser)
    parser.add_argument("--names", type=Path, help="A JSON file of node names, as exported by the page.")
    parser.add_argument(
        "--thumbnail", type=PositiveInt, default=96, help="Pixels of a thumbnail's longer side, at most."
    )
    parser.add_argument("--text", action="store_true", help="Print the tree instead of writing a page.")
    parser.add_argument("--figure", type=Path, help="Draw a subtree into this file (.png, .svg, .pdf) instead.")
    parser.add_argument("--node", help="The root of the figure's subtree, such as 2-17 (level 2, number 17).")
    parser.add_argument("--children", type=PositiveInt, default=4, help="Children per node of the figure, at most.")
    parser.add_argument("--columns", type=PositiveInt, default=6, help="Images per node of the figure.")


def run(config: Namespace) -> None:
    from hirl.explore.tree_figure import check_figure, write_tree_figure
    from hirl.explore.tree_page import read_names, write_tree_page
    from hirl.terminal.progress import progress_bars

    page = not config.text and config.figure is None
    if config.node is not None and config.figure is None:
        raise ValueError(f"--node is {config.node}, but is only for a figure: give its file with --figure")
    if config.figure is not None:
        check_figure(config.figure)
    folder = output_folder(config, "tree") if page else Path()
    collection = open_from_options(config)
    names = {} if config.names is None else read_names(config.names, collection.tree_id)
    if collection.tree_note:
        print(collection.short_note)
    if config.text:
        print_tree(collection, names)
    if config.figure is not None:
        write_tree_figure(
            collection, config.figure, node=config.node, children=config.children, columns=config.columns, names=names
        )
        print(f"Figure written to {config.figure}")
    if page:
        with progress_bars() as progress:
            write_tree_page(collection, folder, names=names, thumbnail=config.thumbnail, progress=progress)
        print(f"Page of {len(collection):,} images written to {folder}. {page_address(folder)}")


def print_tree(collection: Collection, names: dict[str, str]) -> None:
    """Print the tree with given and suggested names and, if there are labels, the classes in each node."""
    from rich.console import Console

    from hirl.explore.node_names import suggest_names
    from hirl.explore.tree_text import draw_tree, print_levels

    suggested = suggest_names(collection, collection.typicality())
    labels, classes = collection.images.labels, collection.images.label_names
    Console().print(
        draw_tree(
            collection.tree,
            f"all {len(collection):,} images",
            labels=None if labels is None else labels[:, 0],
            classes=classes[0] if classes else (),
            names=names,
            suggested={node: suggestion.name for node, suggestion in suggested.items()},
        )
    )
    if suggested.keys() - names.keys():
        print("Names with a question mark are suggestions, see docs/explore.md")
    print_levels(collection.tree)


TREE = Command(
    "tree",
    "write a page to browse a tree with its images, or a figure, or print it",
    options,
    with_start("tree", run, names=None, tree=None, levels=None),
    examples={
        "hirl tree photos/": "a page to browse a tree of your images; nothing is trained",
        "hirl tree runs/photos-mocov2-hirl-0": "the tree of a run; search, duplicates and sample likewise",
    },
    guide="explore.md#the-tree-page",
)
