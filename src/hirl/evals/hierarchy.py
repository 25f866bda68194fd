"""Hierarchy evaluation: does the discovered tree agree with the tree of labels, and what does each z^l find?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.evals.base import Evaluation, Part, Result, Row, Subject, labels_of, level_names
from hirl.hierarchy.builder import hierarchical_kmeans
from hirl.hierarchy.levels import suggest_levels
from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.agreement import dendrogram_purity, height_table, is_nested, purity, rank_correlation
from hirl.metrics.clustering import mutual_information
from hirl.metrics.neighbours import nearest_rows

SHUFFLES = 5  # of the labels, for what chance would give
TREE, WARD, FLAT = "tree", "Ward linkage", "flat K-means"


@dataclass(frozen=True, kw_only=True)
class HierarchyAgreement(Evaluation):
    """The tree over training images, with the test images put in their places, against the labels of the latter.

    Beside it stand two references that see the test images themselves, with as many nodes a level: Ward linkage, and
    one flat K-means a level. A baseline or an encoder without a run gets a tree over its training images' features.

    Args:
        levels: Nodes at each level, fine to coarse, of a tree that is built here; by default fitted to the images.
        rebuild: Build the tree here for a run that has one, too.
        sample: Test images that the references are made of and that ask for their neighbours, at most.
        neighbours: Training images that are retrieved for each.
        iterations: Steps of K-means at most.
        restarts: The best of so many starts of K-means.
    """

    name: ClassVar[str] = "hierarchy"
    levels: tuple[int, ...] | None = None
    rebuild: bool = False
    sample: int = 5000
    neighbours: int = 10
    iterations: int = 20
    restarts: int = 1

    def run(self, subject: Subject) -> Result:
        train_labels, labels = labels_of(subject)
        if not 1 <= self.neighbours <= len(subject.train):
            raise ValueError(
                f"neighbours is {self.neighbours}, but must be at least 1 and at most the {len(subject.train):,} "
                "training images"
            )
        if self.sample < 2:
            raise ValueError(f"sample is {self.sample}, but must be at least 2 images")
        names = level_names(subject.test)
        tree, whence = self._tree(subject)
        subject.progress("hierarchy", 0, 4)
        features = _finest(subject, "test")
        paths = tree.paths.cpu()[tree.assign(features).cpu()]  # (N, L)
        some = _drawn(len(labels), self.sample, subject.seed)

        trees = {(TREE, len(labels)): (paths, labels)}
        if len(some) < len(labels):
            trees[TREE, len(some)] = (paths[some], labels[some])
        sizes = [len(nodes.unique()) for nodes in paths[some].T]
        trees[WARD, len(some)] = (_ward(features[some], sizes), labels[some])
        subject.progress("hierarchy", 1, 4)
        flat = {(FLAT, len(some)): (self._flat(features[some], sizes, subject.seed), labels[some])}
        subject.progress("hierarchy", 2, 4)

        rows = [row for key, pair in (trees | flat).items() for row in _level_rows(*key, *pair, names, subject.seed)]
        rows += [row for key, pair in trees.items() for row in _tree_rows(*key, *pair, names, subject.seed)]
        nested = is_nested(labels)
        if nested:
            rows += [
                {"tree": of, "images": images, "height correlation": rank_correlation(height_table(*pair))}
                for (of, images), pair in trees.items()
            ]
        subject.progress("hierarchy", 3, 4)
        rows += self._retrieval(subject, train_labels, labels, some, names)
        subject.progress("hierarchy", 4, 4)
        chosen: dict[str, Any] = {TREE: whence, "levels": list(tree.levels)}
        if not nested:
            chosen["height correlation"] = "none, for the label levels are not nested"
        return _summed_up(rows, names, len(labels), chosen)

    def _tree(self, subject: Subject) -> tuple[PrototypeTree, str]:
        if subject.tree is not None and not self.rebuild:
            if self.levels is not None:
                raise ValueError("levels are those of the run's own tree: leave them out, or say rebuild")
            return subject.tree, "the run's own"
        features = _finest(subject, "train")
        levels = suggest_levels(len(features)) if self.levels is None else self.levels
        steps = self.restarts * (self.iterations + 1)
        made = hierarchical_kmeans(
            features,
            levels,
            seed=subject.seed,
            iterations=self.iterations,
            restarts=self.restarts,
            progress=lambda level, step, _: subject.progress(f"tree, level {level}", min(step + 1, steps), steps),
        )
        return made, f"built over {len(features):,} training images"

    def _flat(self, features: Tensor, sizes: list[int], seed: int) -> Tensor:
        """(n, L): the clusters of one K-means a level; they need not lie within each other."""
        flat = partial(hierarchical_kmeans, features, seed=seed, iterations=self.iterations, restarts=self.restarts)
        return torch.stack([flat((size,)).leaves for size in sizes], dim=1)

    def _retrieval(
        self, subject: Subject, train_labels: Tensor, labels: Tensor, some: Tensor, names: list[str]
    ) -> list[Row]:
        """How many of each image's neighbours are of its class, by every representation there is."""
        rows: list[Row] = []
        for source, (gallery, queries) in _representations(subject, some).items():
            right = torch.zeros(labels.shape[1], dtype=torch.float64)
            for found in nearest_rows(gallery, queries, self.neighbours):
                asked = labels[some[found.queries]]  # (n, levels)
                right += (train_labels[found.rows] == asked[:, None]).double().sum((0, 1))
            precision = right / (len(some) * self.neighbours)
            for level, name in enumerate(names):
                of = train_labels[:, level]
                chance = of.bincount()[labels[some, level]].double().mean() / len(of)
                rows.append(
                    {
                        "from": source,
                        "labels": name,
                        f"precision at {self.neighbours}": float(precision[level]),
                        "chance": float(chance),
                    }
                )
        return rows


def _finest(subject: Subject, part: Part) -> Tensor:
    """What trees are built over: z⁰ where there is a run, else pooled features."""
    if subject.representations is None:
        return subject.features(part)
    return subject.representations(part)[:, 0]


def _representations(subject: Subject, some: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """By name: those of all training images, and of some test images."""
    found = {"pooled features": (subject.features("train"), subject.features("test")[some])}
    if subject.representations is not None:
        gallery, queries = subject.representations("train"), subject.representations("test")
        found |= {f"z{level}": (gallery[:, level], queries[some, level]) for level in range(gallery.shape[1])}
    return found


def _drawn(N: int, count: int, seed: int) -> Tensor:
    """(n,): places of the images that are looked at, in order; a function of N, count and seed alone."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values


def _ward(features: Tensor, sizes: list[int]) -> Tensor:
    """(n, L): Ward's tree over unit features, cut into so many clusters at each level."""
    from scipy.cluster.hierarchy import fcluster, linkage

    merges = linkage(F.normalize(features.double(), dim=1).cpu().numpy(), method="ward")
    cuts = [torch.from_numpy(fcluster(merges, size, criterion="maxclust")).long() - 1 for size in sizes]
    return torch.stack(cuts, dim=1)


def _level_rows(of: str, images: int, paths: Tensor, labels: Tensor, names: list[str], seed: int) -> list[Row]:
    """Every level of a tree beside every label level."""
    rows: list[Row] = []
    for level, nodes in enumerate(paths.T):
        count = len(nodes.unique())
        for which, name in enumerate(names):
            truth = labels[:, which]
            figures = mutual_information(nodes, truth) | {"purity": purity(nodes, truth)}
            figures |= {"chance": _by_chance(purity, nodes, truth, seed)}
            rows.append({"tree": of, "images": images, "level": level, "nodes": count, "labels": name} | figures)
    return rows


def _tree_rows(of: str, images: int, paths: Tensor, labels: Tensor, names: list[str], seed: int) -> list[Row]:
    """A tree as a whole beside every label level."""
    return [
        {
            "tree": of,
            "images": images,
            "labels": name,
            "dendrogram purity": dendrogram_purity(paths, labels[:, which]),
            "chance": _by_chance(dendrogram_purity, paths, labels[:, which], seed),
        }
        for which, name in enumerate(names)
    ]


def _by_chance(figure: Callable[[Tensor, Tensor], float], tree: Tensor, labels: Tensor, seed: int) -> float:
    """The mean of a figure over shuffled labels: small nodes are pure by chance."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = (labels[torch.randperm(len(labels), generator=generator)] for _ in range(SHUFFLES))
    return sum(figure(tree, drawn) for drawn in shuffled) / SHUFFLES


def _summed_up(rows: list[Row], names: list[str], images: int, chosen: dict[str, Any]) -> Result:
    """The tree of all test images in a few figures: its best level for each label level, and itself as a whole."""
    own = [row for row in rows if row.get("tree") == TREE and row["images"] == images]
    headline: dict[str, float] = {}
    for name in names:
        best = max((row for row in own if "AMI" in row and row["labels"] == name), key=lambda row: float(row["AMI"]))
        headline[f"AMI, {name}"] = best["AMI"]
        chosen[f"level of AMI, {name}"] = best["level"]
    for row in own:
        if "dendrogram purity" in row:
            headline[f"dendrogram purity, {row['labels']}"] = row["dendrogram purity"]
        if "height correlation" in row:
            headline["height correlation"] = row["height correlation"]
    return Result(headline=headline, rows=rows, chosen=chosen)
