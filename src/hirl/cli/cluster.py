"""`hirl cluster`: build a tree over features of your own."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hirl.cli.collection import page_address
from hirl.cli.command import Command, check_new
from hirl.config import NonNegativeInt, PositiveInt
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.hierarchy.builder import TreeBuilder
    from hirl.hierarchy.tree import PrototypeTree


SUFFIX = ".safetensors"


def options(parser: Parser) -> None:
    from hirl.features.feature_files import FORMATS_HELP
    from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder

    parser.add_argument("features", type=Path, help=f"One row per image: {FORMATS_HELP}, or a folder of its parts.")
    parser.add_argument("--out", type=Path, required=True, help=f"The {SUFFIX} file to write the tree to.")
    parser.add_argument(
        "--levels",
        type=list[PositiveInt],
        help="Nodes per level, fine to coarse; by default chosen to fit the features.",
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of the initial prototypes.")
    parser.add_options(HierarchicalKMeans)
    about = "Build the tree on a sample of this many rows per leaf, then assign all rows; by default 256 with parts."
    parser.add_argument("--rows_per_prototype", type=PositiveInt, help=about)
    about = "How often to cut large nodes of the sample to the mean size and cluster again, for a more balanced tree."
    parser.add_argument("--resample", type=NonNegativeInt, default=0, help=about)
    parser.add_argument(
        "--images",
        help="The images of the rows, in order: also write a page beside --out that shows the tree with them.",
    )
    about = "Tree builder to use instead of K-means; its options are --builder.NAME."
    parser.add_object("builder", TreeBuilder, about)
    parser.add_argument("--overwrite", action="store_true", help="Replace the file at --out if it exists.")


def run(config: Namespace) -> None:
    import torch

    from hirl.data import open_images
    from hirl.explore.collection import open_collection
    from hirl.explore.page import check_page_folder
    from hirl.explore.tree_page import write_tree_page
    from hirl.explore.tree_text import print_levels
    from hirl.features.feature_files import check_row_count, read_features, readable_rows
    from hirl.features.feature_parts import is_parts
    from hirl.hierarchy.builder import HierarchicalKMeans
    from hirl.hierarchy.level_search import suggest_levels
    from hirl.hierarchy.tree import NO_LEAF
    from hirl.terminal.progress import progress_bars, tree_progress

    check_new(config.out, overwrite=config.overwrite)
    if config.out.suffix != SUFFIX:
        raise ValueError(f"--out is {str(config.out)!r}, but must end in {SUFFIX}, the format of trees")
    page = config.out.with_name(f"{config.out.stem}_page")
    if config.images is not None:
        check_page_folder(page)
    names = [field.name for field in fields(HierarchicalKMeans)]
    kmeans = HierarchicalKMeans(**{name: getattr(config, name) for name in names})
    if config.builder is not None and kmeans != HierarchicalKMeans():
        raise ValueError(f"--{', --'.join(names)} are for K-means, but --builder is given: use --builder.NAME options")
    builder = kmeans if config.builder is None else config.builder
    images = None
    if is_parts(config.features) or config.rows_per_prototype is not None:
        if config.images is not None:
            raise ValueError("--images cannot be used with a sampled tree: its page would hold too many images")
        tree = _sampled_tree(config, builder)
    elif config.resample:
        raise ValueError("--resample needs a sampled tree: give --rows_per_prototype too")
    else:
        arrays = read_features(config.features)
        features = arrays["z0"] if "z0" in arrays else arrays["features"]
        if config.images is not None:
            images = open_images(config.images)
            check_row_count(config.features, len(features), images)
        count, readable = len(features), readable_rows(config.features, arrays)
        if readable is not None:
            features = features[readable]
        levels = config.levels
        if levels is None:
            levels = suggest_levels(features)
            print(f"levels {tuple(levels)}: {levels.why}")
        rows = builder.rows_per_step(len(features), levels)
        with tree_progress(rows, levels, builder.max_steps) as progress:
            tree = builder(features, tuple(levels), seed=config.seed, progress=progress)
        if readable is not None:
            leaves = torch.full((count,), NO_LEAF)
            leaves[torch.from_numpy(readable)] = tree.leaves
            tree = replace(tree, leaves=leaves)
    tree.save(config.out)
    print_levels(tree)
    print(f"Wrote the tree of {tree.count:,} images to {config.out}")
    if images is not None:
        collection = open_collection(config.features, images, tree=config.out)
        with progress_bars() as bars:
            write_tree_page(collection, page, progress=bars)
        print(f"Page of {len(collection):,} images written to {page}. {page_address(page)}")


def _sampled_tree(config: Namespace, builder: TreeBuilder) -> PrototypeTree:
    """Build a tree on a sample of features, which may be larger than memory, and assign all rows to it."""
    from hirl.features.feature_files import read_features
    from hirl.features.feature_parts import is_parts, open_parts
    from hirl.hierarchy.level_search import suggest_levels
    from hirl.hierarchy.sampled import ROWS_PER_PROTOTYPE, sampled_tree
    from hirl.terminal.progress import progress_bars, tree_progress

    if is_parts(config.features):
        parts = open_parts(config.features).finest()
    else:
        arrays = read_features(config.features)
        parts = [arrays["z0"] if "z0" in arrays else arrays["features"]]
    total = sum(map(len, parts))
    levels = config.levels
    if levels is None:
        levels = suggest_levels(total)
        print(f"levels {tuple(levels)}: {levels.why}")
    per_prototype = config.rows_per_prototype or ROWS_PER_PROTOTYPE
    sample = min(total, per_prototype * levels[0])
    print(f"Clustering {sample:,} of {total:,} rows, then assigning all of them")
    with (
        progress_bars() as bars,
        tree_progress(builder.rows_per_step(sample, levels), levels, builder.max_steps) as progress,
    ):
        return sampled_tree(
            parts,
            tuple(levels),
            builder=builder,
            rows_per_prototype=per_prototype,
            resample=config.resample,
            seed=config.seed,
            progress=progress,
            assigned=lambda done, count: bars("rows assigned", done, count),
        )


CLUSTER = Command(
    "cluster",
    "build a tree of prototypes over features of your own",
    options,
    run,
    examples={
        "hirl cluster features.npy --out tree.safetensors": "a tree over features of your own, levels chosen to fit",
    },
    guide="hierarchy.md#from-features-to-a-tree",
)
