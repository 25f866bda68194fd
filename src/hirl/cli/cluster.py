"""`hirl cluster`: build a tree over features of your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from hirl.cli.collection import page_address
from hirl.cli.command import Command, check_new
from hirl.config.parser import Parser

if TYPE_CHECKING:
    from hirl.data import ImageSet


def cluster_options(parser: Parser) -> None:
    from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder

    parser.add_argument(
        "features",
        type=Path,
        help="A .npy file of floats of shape (N, D), one row per image, or a .npz of `hirl embed`.",
    )
    parser.add_argument("--out", type=Path, required=True, help="The file to write the tree to, .safetensors.")
    parser.add_argument(
        "--levels", type=list[PositiveInt], help="Nodes per level, fine to coarse; by default chosen to fit N."
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of the starting rows.")
    parser.add_options(HierarchicalKMeans)
    parser.add_argument(
        "--images", help="Images of the rows, in order: write a page to browse the tree with them beside --out, too."
    )
    about = "Tree builder to use instead of K-means; its options are --builder.NAME."
    parser.add_object("builder", TreeBuilder, None, about)
    parser.add_argument("--overwrite", action="store_true", help="Replace the file at --out if it exists.")


def cluster(config: Namespace) -> None:
    import torch

    from hirl.data import open_images
    from hirl.explore.collection_source import check_row_count
    from hirl.explore.feature_files import read_features, readable_rows
    from hirl.explore.page import check_page_folder
    from hirl.explore.tree_text import level_table
    from hirl.hierarchy.builder import HierarchicalKMeans
    from hirl.hierarchy.levels import suggest_levels
    from hirl.hierarchy.tree import ABSENT
    from hirl.terminal.progress import tree_progress

    check_new(config.out, overwrite=config.overwrite)
    page = config.out.with_name(f"{config.out.stem}_page")
    if config.images is not None:
        check_page_folder(page)
    names = [field.name for field in fields(HierarchicalKMeans)]
    kmeans = HierarchicalKMeans(**{name: config[name] for name in names})
    if config.builder is not None and kmeans != HierarchicalKMeans():
        raise ValueError(f"--{', --'.join(names)} are options of K-means: give those of --builder as --builder.NAME")
    builder = kmeans if config.builder is None else config.builder
    arrays = read_features(config.features)
    features = arrays.get("z0", arrays.get("features"))
    assert features is not None  # as read_features makes sure
    images = None
    if config.images is not None:
        images = open_images(config.images)
        check_row_count(config.features, len(features), images)
    count, readable = len(features), readable_rows(config.features, arrays)
    if readable is not None:
        features = features[readable]
    levels: Sequence[int] | None = config.levels
    if levels is None:
        suggested = suggest_levels(len(features))
        print(f"levels {tuple(suggested)}: {suggested.why}")
        levels = suggested
    rows = builder.rows_per_step(len(features), levels)
    with tree_progress(rows, levels, builder.max_steps) as progress:
        tree = builder(features, tuple(levels), seed=config.seed, progress=progress)
    if readable is not None:
        leaves = torch.full((count,), ABSENT)
        leaves[torch.from_numpy(readable)] = tree.leaves
        tree = replace(tree, leaves=leaves)
    tree.save(config.out)
    level_table(tree)
    print(f"Wrote the tree of {tree.count:,} images to {config.out}")
    if images is not None:
        _write_page(config, images, page)


def _write_page(config: Namespace, images: ImageSet, page: Path) -> None:
    from hirl.explore.collection import open_collection
    from hirl.explore.tree_page import write_tree_page
    from hirl.terminal.progress import progress_bars

    collection = open_collection(config.features, images, tree=config.out)
    with progress_bars() as progress:
        write_tree_page(collection, page, progress=progress)
    print(f"Page of {len(collection):,} images written to {page}. {page_address(page)}")


CLUSTER = Command("cluster", "build a tree of prototypes over features of your own", cluster_options, cluster)
