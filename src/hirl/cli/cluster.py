"""`hirl cluster`: build a tree over features of your own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from hirl.cli.command import Command, check_new
from hirl.config.parser import Parser

KMEANS = ("iterations", "restarts", "tolerance", "spherical")  # options of the default builder


def cluster_options(parser: Parser) -> None:
    from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder

    parser.add_argument("features", type=Path, help="A .npy file of floats of shape (N, D), one row per image.")
    parser.add_argument("--out", type=Path, required=True, help="The file to write the tree to, .safetensors.")
    parser.add_argument(
        "--levels", type=list[PositiveInt], help="Nodes per level, fine to coarse; by default chosen to fit N."
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of the starting rows.")
    parser.add_options(HierarchicalKMeans)
    about = "Tree builder to use instead of K-means; its options are --builder.NAME."
    parser.add_object("builder", TreeBuilder, None, about)
    parser.add_argument("--overwrite", action="store_true", help="Replace the file at --out if it exists.")


def cluster(config: Namespace) -> None:
    import numpy as np

    from hirl.explore.tree_text import level_table
    from hirl.hierarchy.builder import HierarchicalKMeans
    from hirl.hierarchy.levels import suggest_levels
    from hirl.terminal.progress import tree_progress

    check_new(config.out, overwrite=config.overwrite)
    kmeans = HierarchicalKMeans(**{name: config[name] for name in KMEANS})
    if config.builder is not None and kmeans != HierarchicalKMeans():
        raise ValueError(f"--{', --'.join(KMEANS)} are options of K-means: give those of --builder as --builder.NAME")
    builder = kmeans if config.builder is None else config.builder
    if not config.features.is_file():
        raise ValueError(f"there is no file {str(config.features)!r}: the features are a .npy file of shape (N, D)")
    try:
        features = np.load(config.features, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{str(config.features)!r} is not a .npy file of numbers: {error}") from error
    if not isinstance(features, np.ndarray) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, np.ndarray) else "several arrays"
        raise ValueError(f"{str(config.features)!r} must hold one array of shape (N, D), not {shape}")
    levels: Sequence[int] | None = config.levels
    if levels is None:
        suggested = suggest_levels(len(features))
        print(f"levels {tuple(suggested)}: {suggested.why}")
        levels = suggested
    with tree_progress(len(features), levels, builder.max_steps) as progress:
        tree = builder(features, tuple(levels), seed=config.seed, progress=progress)
    tree.save(config.out)
    level_table(tree)
    print(f"Wrote the tree of {len(tree.leaves):,} images to {config.out}")


CLUSTER = Command("cluster", "build a tree of prototypes over features of your own", cluster_options, cluster)
