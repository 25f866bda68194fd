"""What a sample through the tree is worth against random choice: classes covered, and KNN with its labels alone.

    python -m benchmarks.sample RUN                    # a trained run, on the labelled images it was trained on
    python -m benchmarks.sample RUN --data FOLDER      # or on others, with a train and a val part

For each seed, `--size` images of the training part are chosen by each way, and the val part is classified by KNN (by a
weighted vote over pooled features of the run's encoder) from these alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hirl import Run
from hirl.explore.collection import open_collection
from hirl.explore.embed import embed
from hirl.explore.sample import sample_images
from hirl.metrics.knn import knn_accuracy

KS = (1, 5, 10, 20)


def measure(run: str, data: str | None, sizes: Sequence[int], seeds: int) -> Table:
    collection = open_collection(run, data)
    labels = collection.images.labels
    if labels is None:
        raise SystemExit(f"{collection.images.name} has no labels to measure a sample with")
    test = embed(run, data if data is not None else Run(run).config["data"], split="val")
    truth = torch.from_numpy(test["labels"])
    queries = torch.from_numpy(test["features"])
    ways: dict[str, Callable[[int, int], list[int]]] = {
        "random": lambda size, seed: np.random.default_rng(seed).choice(len(collection), size, replace=False).tolist(),
        "typical": lambda size, seed: sample_images(collection, size, pick="typical", seed=seed),
        "spread": lambda size, seed: sample_images(collection, size, pick="spread", seed=seed),
    }
    counts = [len(names) for names in collection.images.label_names]
    table = Table(title=f"{collection.name}: {len(collection):,} images, {len(queries):,} tested", title_justify="left")
    for heading in ("images", "way", "seed", f"of {counts[0]} classes covered", *(f"KNN, K = {k}" for k in KS)):
        table.add_column(heading, justify="right")
    for size in sizes:
        for way, choose in ways.items():
            every = []
            for seed in range(seeds):
                chosen = torch.tensor(choose(size, seed))
                accuracy = 100 * knn_accuracy(collection.features[chosen], labels[chosen], queries, truth, ks=KS)
                covered = len(labels[chosen, 0].unique())
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
    parser.add_argument("--data", help="labelled images with a train and a val part; by default the run's own")
    parser.add_argument("--size", type=int, nargs="+", default=[500])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    Console(width=160).print(measure(args.run, args.data, args.size, args.seeds))


if __name__ == "__main__":
    main()
