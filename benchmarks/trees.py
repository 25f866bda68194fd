"""How well trees agree with labels: every way to build one, flat K-means and Ward linkage, over the same images.

    python -m benchmarks.trees RUN wordnet50/ grocery/ shapes --seeds 0 1 2 --out trees

Trees are built over z⁰ of a sample of the training images, and the val images are assigned to them. AMI in %, per level
of the tree and label level, as mean ± standard error over seeds, each of which draws its own sample and start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

import hirl
from hirl.evals.tree import ward_tree
from hirl.explore.embed import embed
from hirl.hierarchy.levels import suggest_levels
from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.clustering import mutual_information
from hirl.terminal.tables import Cells, print_tables, write_tables

TOP_DOWN, FLAT = "top-down (default)", "flat K-means"
Build = Callable[..., PrototypeTree]
TREES: dict[str, Build] = {
    "bottom-up (Alg. 1)": hirl.HierarchicalKMeans(order="bottom-up"),
    "bottom-up, weighted": hirl.HierarchicalKMeans(order="bottom-up", weighted=True),
    TOP_DOWN: hirl.HierarchicalKMeans(order="top-down"),
    "Ward linkage": lambda features, levels, seed: ward_tree(features, levels),  # noqa: ARG005 (nothing is drawn)
}


def embedded(run: str, data: str, split: str) -> tuple[Tensor, Tensor]:
    """z⁰ (N, D) and labels (N, levels) of a part of the images."""
    found = embed(run, data, split=split, device="cpu", quiet=True)
    return torch.from_numpy(found["z0"]), torch.from_numpy(found["labels"])


def agreement(nodes: Tensor, labels: Tensor) -> list[float]:
    """AMI in % with each label level."""
    return [100 * mutual_information(nodes, truth)["AMI"] for truth in labels.T]


def scores(features: Tensor, levels: Sequence[int], test: Tensor, labels: Tensor, seed: int) -> dict[str, list[float]]:
    """By tree: AMI per level and label level, in one list."""
    found = {}
    for name, build in TREES.items():
        tree = build(features, levels, seed=seed)
        paths = tree.paths[tree.assign(test)]
        found[name] = [value for nodes in paths.T for value in agreement(nodes, labels)]
    flat = [hirl.HierarchicalKMeans()(features, (size,), seed=seed).assign(test) for size in levels]
    return found | {FLAT: [value for nodes in flat for value in agreement(nodes, labels)]}


def compared(run: str, data: str, seeds: Sequence[int], most: int, levels: Sequence[int] | None) -> Cells:
    features, _ = embedded(run, data, "train")
    test, labels = embedded(run, data, "val")
    count = min(most, len(features))
    sizes = tuple(suggest_levels(count)) if levels is None else tuple(levels)
    tried = []
    for seed in seeds:
        some = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:count]
        tried.append(scores(features[some], sizes, test, labels, seed))
    classes = [len(truth.unique()) for truth in labels.T]
    rows = [["tree", *(f"{size} nodes, {number} classes" for size in sizes for number in classes)]]
    for name in tried[0]:
        columns = zip(*(found[name] for found in tried), strict=True)
        rows.append([name, *(_shown(column) for column in columns)])
    return rows


def _shown(values: Sequence[float]) -> str:
    error = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder, whose z⁰ is clustered")
    parser.add_argument("data", nargs="+", help="labelled images with a train and a val split")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--sample", type=int, default=5000, help="most training images per tree")
    parser.add_argument("--levels", nargs="+", type=int, help="nodes per level, fine to coarse; by default suggested")
    parser.add_argument("--out", type=Path, default=Path("trees"))
    arguments = parser.parse_args()
    compare: Callable[[str], Any] = partial(
        compared, arguments.run, seeds=arguments.seeds, most=arguments.sample, levels=arguments.levels
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    tables = {Path(data).name: compare(data) for data in arguments.data}
    write_tables(arguments.out, tables)
    print_tables(tables)


if __name__ == "__main__":
    main()
