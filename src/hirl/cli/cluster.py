"""`hirl cluster` and `hirl demo`: a tree over features, of one's own or of handwritten digits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt, restricted_number_type

from hirl.cli.command import Command, check_new

Share = restricted_number_type("Share", float, [(">=", 0), ("<", 1)])


def cluster_options(parser: ArgumentParser) -> None:
    parser.add_argument("features", type=Path, help="a .npy file of shape (N, D), one row an image, of a float type")
    parser.add_argument("--out", type=Path, required=True, help="where the tree goes, a .safetensors file")
    parser.add_argument(
        "--levels", type=PositiveInt, nargs="+", help="nodes at each level, fine to coarse; by default fitted to N"
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the starting rows")
    parser.add_argument("--iterations", type=PositiveInt, default=20, help="Lloyd steps a level at most")
    parser.add_argument("--restarts", type=PositiveInt, default=1, help="take the best of so many starts")
    parser.add_argument(
        "--tolerance", type=Share, default=0.002, help="stop when no more than this share of rows moves"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def cluster(config: Namespace) -> None:
    import numpy as np

    from hirl.explore.tree_text import level_table
    from hirl.hierarchy.kmeans import hierarchical_kmeans
    from hirl.hierarchy.levels import suggest_levels
    from hirl.terminal.progress import kmeans_progress

    check_new(config.out, overwrite=config.overwrite)
    if not config.features.is_file():
        raise ValueError(f"there is no file {str(config.features)!r}: the features are a .npy file of shape (N, D)")
    try:
        features = np.load(config.features, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{str(config.features)!r} is no .npy file of numbers: {error}") from error
    if not isinstance(features, np.ndarray) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, np.ndarray) else "several arrays"
        raise ValueError(f"{str(config.features)!r} must hold one array of shape (N, D), not {shape}")
    levels: Sequence[int] | None = config.levels
    if levels is None:
        suggested = suggest_levels(len(features))
        print(f"levels {tuple(suggested)}: {suggested.why}")
        levels = suggested
    with kmeans_progress(len(features), levels, config.restarts * (config.iterations + 1)) as progress:
        tree = hierarchical_kmeans(
            features,
            tuple(levels),
            seed=config.seed,
            iterations=config.iterations,
            restarts=config.restarts,
            tolerance=config.tolerance,
            progress=progress,
        )
    tree.save(config.out)
    level_table(tree)
    print(f"tree of {len(tree.leaves):,} images written to {config.out}")


def demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the tree's starting rows")


def demo(config: Namespace) -> None:
    from hirl.explore.demo import digits_demo

    digits_demo(seed=config.seed)


DEMO = Command("demo", "builds and prints a tree over the handwritten digits of scikit-learn", demo_options, demo)
CLUSTER = Command("cluster", "builds a tree of prototypes over features of your own", cluster_options, cluster)
