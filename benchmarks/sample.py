"""What a sample through the tree is worth against random choice: classes covered, and KNN with its labels alone.

    python -m benchmarks.sample RUN                    # a trained run, on the labelled images it was trained on
    python -m benchmarks.sample RUN --data FOLDER      # or on others, with a train and a val split

Each seed is its own measurement: it draws four fifths of the training split and builds a new tree over z⁰ of these.
From them `--size` images are chosen by each way, and the val split is classified by KNN (by a weighted vote over pooled
features of the run's encoder) from these alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hirl import Run, hierarchical_kmeans, suggest_levels
from hirl.data.sources.image_set import Subset
from hirl.explore.collection import Collection, open_collection
from hirl.explore.embed import embed
from hirl.explore.sample import sample_images
from hirl.metrics.knn import knn_accuracy

KS = (1, 5, 10, 20)
SHARE = 0.8


def part_of(collection: Collection, seed: int) -> Collection:
    """A random part of the images, with a tree of its own."""
    count = int(SHARE * len(collection))
    drawn = np.random.default_rng(seed).choice(len(collection), count, replace=False)
    rows = torch.from_numpy(np.sort(drawn))
    z = tuple(each[rows] for each in collection.z)
    tree = hierarchical_kmeans(z[0], suggest_levels(count), seed=seed)
    part: dict[str, Any] = {"images": Subset(collection.images, rows), "rows": collection.rows[rows], "z": z}
    part |= {"features": collection.features[rows], "tree": tree}
    return replace(collection, **part)


def measure(run: str, data: str | None, sizes: Sequence[int], seeds: int) -> Table:
    collection = open_collection(run, data)
    if collection.images.labels is None:
        raise SystemExit(f"{collection.images.name} has no labels to measure a sample with")
    test = embed(run, data if data is not None else Run(run).config["data"], split="val")
    truth = torch.from_numpy(test["labels"])
    queries = torch.from_numpy(test["features"])
    ways: dict[str, Callable[[Collection, int, int], list[int]]] = {
        "random": lambda part, size, seed: np.random.default_rng(seed).choice(len(part), size, replace=False).tolist(),
        "typical": lambda part, size, seed: sample_images(part, size, pick="typical", seed=seed),
        "spread": lambda part, size, seed: sample_images(part, size, pick="spread", seed=seed),
    }
    parts = [part_of(collection, seed) for seed in range(seeds)]
    counts = [len(names) for names in collection.images.label_names]
    table = Table(title=f"{collection.name}: {len(collection):,} images, {len(queries):,} tested", title_justify="left")
    for heading in ("images", "way", "seed", f"of {counts[0]} classes covered", *(f"KNN, K = {k}" for k in KS)):
        table.add_column(heading, justify="right")
    for size in sizes:
        for way, choose in ways.items():
            every = []
            for seed, part in enumerate(parts):
                chosen = torch.tensor(choose(part, size, seed))
                assert part.images.labels is not None
                classes = part.images.labels[chosen]
                accuracy = 100 * knn_accuracy(part.features[chosen], classes, queries, truth, ks=KS)
                covered = len(classes[:, 0].unique())
                every.append(accuracy)
                shown = ["/".join(f"{value:.1f}" for value in row.tolist()) for row in accuracy]
                table.add_row(str(size), way, str(seed), str(covered), *shown)
            mean = torch.stack(every).mean(0)
            shown = ["/".join(f"{value:.1f}" for value in row.tolist()) for row in mean]
            table.add_row(str(size), way, "mean", "", *shown, style="bold", end_section=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--data", help="labelled images with a train and a val split; by default the run's own")
    parser.add_argument("--size", type=int, nargs="+", default=[500])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    Console(width=160).print(measure(args.run, args.data, args.size, args.seeds))


if __name__ == "__main__":
    main()
