"""How well trees agree with labels: every way to build one, and flat K-means, over the same images.

    python -m benchmarks.trees RUN --data wordnet50/ grocery/ shapes --seeds 0 1 2 --out trees
    python -m benchmarks.trees --features plants-train.npz plants-val.npz --seeds 0 1 2 --out trees

Trees are built over z⁰ of a run (or the pooled features of any encoder) of a sample of the training images, and the val
images are assigned to them. AMI in %, per level of the tree and label level, as mean ± standard error over seeds, each
of which draws its own sample and start. Last, what says nothing about labels: the share of leaves with a single image,
and the mean cosine of a training image to its leaf.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import hirl
from hirl.explore.embed import embed
from hirl.hierarchy.builder import POOLED_FEATURES
from hirl.hierarchy.level_search import suggest_levels
from hirl.hierarchy.rows import UnitRows
from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.agreement import mutual_information
from hirl.terminal.tables import Cells, print_tables, write_tables

TEMPERATURE = 0.1  # of the probabilities that an image belongs to each of the flat clusters
Build = Callable[..., PrototypeTree]
Images = tuple[Tensor, Tensor]  # features (N, D) and labels (N, levels)


def logit_tree(features: Tensor, levels: Sequence[int], *, seed: int) -> PrototypeTree:
    """A hierarchy from flat logits (Logits to Hierarchies, Palumbo et al. 2024, arXiv 2410.07858), over flat K-means.

    Starting from the flat clusters, the cluster with the least total probability joins the one that gets most of its
    images' probability when its own is left out. Logits are cosines over a temperature.
    """
    flat = FLAT["flat K-means per level, reduced"](features, levels[:1], seed=seed)
    assert flat.reduced is not None
    rows = flat.reduced.project(UnitRows(features))[:]
    probability = (rows @ flat.reduced.prototypes[0].T / TEMPERATURE).softmax(1).double()  # (N, M)
    group = torch.arange(levels[0])
    cuts = [group.clone()]
    for size in levels[1:]:
        while len(group.unique()) > size:
            groups = group.unique()
            shares = torch.stack([probability[:, group == g].sum(1) for g in groups], 1)
            own = shares.argmax(1)
            weight = torch.stack([shares[own == place, place].sum() for place in range(len(groups))])
            least = int(weight.argmin())
            rest = shares[own == least].clone() if bool((own == least).any()) else shares
            rest[:, least] = 0
            group[group == groups[least]] = groups[int((rest / rest.sum(1, keepdim=True)).sum(0).argmax())]
        cuts.append(group.unique(return_inverse=True)[1])
    parents = []
    for fine, coarse in pairwise(cuts):
        above = torch.empty(int(fine.max()) + 1, dtype=torch.int64)
        above[fine] = coarse
        parents.append(above)
    sums = [torch.zeros(int(cut.max()) + 1, flat.dim).index_add_(0, cut, flat.prototypes[0]) for cut in cuts]
    reduced = [
        torch.zeros(int(cut.max()) + 1, rows.shape[1]).index_add_(0, cut, flat.reduced.prototypes[0]) for cut in cuts
    ]
    return PrototypeTree(
        tuple(F.normalize(level, dim=1) for level in sums),
        tuple(parents),
        flat.leaves,
        reduced=replace(flat.reduced, prototypes=tuple(F.normalize(level, dim=1) for level in reduced)),
    )


REDUCED = replace(POOLED_FEATURES, order="top-down", averaged=0)
TREES: dict[str, Build] = {
    "bottom-up (Alg. 1)": hirl.HierarchicalKMeans(order="bottom-up"),
    "top-down (default for z⁰)": hirl.HierarchicalKMeans(),
    "Ward": hirl.HierarchicalKMeans(order="ward"),
    "bottom-up, reduced": replace(REDUCED, order="bottom-up"),
    "top-down, reduced": REDUCED,
    "Ward, reduced": replace(REDUCED, order="ward"),
    "Ward of averaged rows, reduced (default for pooled features)": POOLED_FEATURES,
    "the same, of 1,000 small clusters": replace(POOLED_FEATURES, linked=1000),
    "from flat logits, reduced": logit_tree,
}
FLAT: dict[str, Build] = {
    "flat K-means per level": hirl.HierarchicalKMeans(),
    "flat K-means per level, reduced": REDUCED,
}


def embedded(subject: str, data: str, split: str) -> Images:
    """z⁰ of a run, else pooled features (N, D), and labels (N, levels) of a part of the images."""
    found = embed(subject, data, split=split, device="cpu", quiet=True)
    return torch.from_numpy(found.get("z0", found["features"])), torch.from_numpy(found["labels"])


def from_file(path: Path) -> Images:
    with np.load(path, allow_pickle=False) as arrays:
        name = "z0" if "z0" in arrays else "features"
        return torch.from_numpy(arrays[name]).float(), torch.from_numpy(arrays["labels"])


def agreement(paths: Tensor, labels: Tensor) -> list[float]:
    """AMI in % of each level with each label level, in one list."""
    return [100 * mutual_information(nodes, truth)["AMI"] for nodes in paths.T for truth in labels.T]


def shape_of(features: Tensor, tree: PrototypeTree) -> list[float]:
    """The share of leaves with a single image, and the mean cosine to the mean direction of the leaf's images, in %."""
    units = F.normalize(features, dim=1)
    means = F.normalize(torch.zeros(tree.levels[0], tree.dim).index_add_(0, tree.leaves, units), dim=1)
    return [100 * float((tree.sizes(0) == 1).float().mean()), 100 * float((units * means[tree.leaves]).sum(1).mean())]


def scores(features: Tensor, levels: Sequence[int], test: Images, seed: int) -> dict[str, list[float]]:
    found = {}
    for name, build in TREES.items():
        tree = build(features, levels, seed=seed)
        found[name] = agreement(tree.paths[tree.assign(test[0])], test[1]) + shape_of(features, tree)
    for name, build in FLAT.items():
        flat = [build(features, (size,), seed=seed) for size in levels]
        paths = torch.stack([tree.assign(test[0]) for tree in flat], dim=1)
        found[name] = agreement(paths, test[1]) + shape_of(features, flat[0])
    return found


def compared(train: Images, test: Images, seeds: Sequence[int], most: int, levels: Sequence[int] | None) -> Cells:
    features, labels = train[0], test[1]
    count = min(most, len(features))
    sizes = tuple(suggest_levels(count)) if levels is None else tuple(levels)
    tried = []
    for seed in seeds:
        some = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:count]
        tried.append(scores(features[some], sizes, test, seed))
    classes = [len(truth.unique()) for truth in labels.T]
    columns = [f"{size} nodes, {number} classes" for size in sizes for number in classes]
    rows = [["tree", *columns, "single-image leaves", "cosine to the leaf"]]
    for name in tried[0]:
        figures = zip(*(found[name] for found in tried), strict=True)
        rows.append([name, *(_shown(values) for values in figures)])
    return rows


def _shown(values: Sequence[float]) -> str:
    error = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", nargs="?", help="a run folder, whose z⁰ is clustered, or another encoder")
    parser.add_argument("--data", nargs="+", default=[], help="labelled images with a train and a val split")
    about = "instead of an encoder and images: .npz files of `hirl embed`, of training and test images in turn"
    parser.add_argument("--features", nargs="+", type=Path, default=[], help=about)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--sample", type=int, default=5000, help="most training images per tree")
    parser.add_argument("--levels", nargs="+", type=int, help="nodes per level, fine to coarse; by default suggested")
    parser.add_argument("--out", type=Path, default=Path("trees"))
    given = parser.parse_args()
    if bool(given.data) == bool(given.features) or bool(given.data) != bool(given.encoder) or len(given.features) % 2:
        parser.error("name an encoder and --data, or pairs of --features")
    sets = {
        Path(data).name: (embedded(given.encoder, data, "train"), embedded(given.encoder, data, "val"))
        for data in given.data
    }
    pairs = zip(given.features[::2], given.features[1::2], strict=True)
    sets |= {train.stem: (from_file(train), from_file(test)) for train, test in pairs}
    given.out.mkdir(parents=True, exist_ok=True)
    tables = {}
    for name, (train, test) in sets.items():
        tables[name] = compared(train, test, given.seeds, given.sample, given.levels)
        write_tables(given.out, tables)  # after each set: the next one takes minutes
    print_tables(tables)


if __name__ == "__main__":
    main()
