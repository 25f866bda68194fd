"""Agreement of trees: does the tree over the images match the tree of their labels, and what does each z^l retrieve?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Evaluation, Needs, Part, Result, Row, Subject
from hirl.evals.labels import labels_of, level_names
from hirl.hierarchy.builder import POOLED_FEATURES, HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.levels import check_levels, levels_by_number
from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.agreement import (
    dendrogram_purity,
    height_table,
    is_nested,
    mutual_information,
    purity,
    rank_correlation,
)
from hirl.metrics.neighbours import nearest_rows
from hirl.terminal.figures import Figure, score, share

MOST_RETRIEVED = 1000  # neighbours per image
SHUFFLES = 5  # of the labels, for the figure at chance
TREE, OWN, REBUILT, WARD, FLAT = "tree", "run's own", "sampled", "Ward", "K-means"


class Assigned(NamedTuple):
    """The test images in a tree: the nodes per level of the tree, and the path of each image, (N, L)."""

    levels: tuple[int, ...]
    paths: Tensor


Trees = dict[tuple[str, int], Assigned]  # by name, and the number of images that the tree was built from


@dataclass(frozen=True, kw_only=True)
class TreeAgreement(Evaluation):
    """A tree over the training images' features, with the test images assigned to it, against the test images' labels.

    The tree is built here, by the same builder and with the same levels for every encoder, from its pooled features, so
    that figures of two encoders compare the encoders alone. The tree that a run has learnt with, over its z⁰, is judged
    as well, under a name of its own. Two references have as many nodes per level: Ward linkage, and one flat K-means
    per level. They and another tree are built from the same sample of the training images, and the same test images are
    assigned to each. The other tree is left out if the sample is all of them, since it would be the same.

    Args:
        levels: Nodes per level, fine to coarse; by default fitted to the number of training images.
        sample: Most training images that the references are built from, and test images that neighbours are retrieved
            for.
        neighbours: Training images to retrieve per test image.
        builder: Builds the tree; if it is K-means, the flat K-means of the reference has the same settings.
    """

    name: ClassVar[str] = "tree"
    revision: ClassVar[int] = 2  # nodes are those of the tree; they were those that have test images
    levels: tuple[int, ...] | None = None
    sample: int = 5000
    neighbours: int = 10
    builder: TreeBuilder = POOLED_FEATURES

    @property
    def needs(self) -> Needs:
        return Needs(labels=True, run=True)

    def check(self, parts: Mapping[Part, ImageSet]) -> None:
        N = len(parts["train"])
        if not 1 <= self.neighbours <= N:
            raise ValueError(
                f"neighbours is {self.neighbours}, but must be at least 1 and at most the {N:,} training images"
            )
        if self.sample < 4:  # as `levels_by_number` needs
            raise ValueError(f"sample is {self.sample}, but must be at least 4 images")
        if self.levels is not None:
            check_levels(self.levels, N)

    def run(self, subject: Subject) -> Result:
        self.check(subject.parts)
        train_labels, labels = labels_of(subject)
        names = level_names(subject.test)
        tree = self._tree(subject)
        subject.progress(self.name, 0, 4)
        features = subject.features("test").to(subject.device)
        trees: Trees = {(TREE, tree.count): _assigned(tree, features)}
        if subject.tree is not None and subject.representations is not None:
            z0 = subject.representations("test")[:, 0].to(subject.device)
            trees[OWN, subject.tree.count] = _assigned(subject.tree, z0)
        references, flat = self._references(subject, tree.levels, features)
        trees |= references
        subject.progress(self.name, 2, 4)

        rows = [
            row
            for key, assigned in (trees | flat).items()
            for row in _level_rows(*key, assigned, labels, names, subject.seed)
        ]
        rows += [
            row
            for key, assigned in trees.items()
            for row in _tree_rows(*key, assigned.paths, labels, names, subject.seed)
        ]
        nested = is_nested(labels)
        if nested:
            for (of, images), assigned in trees.items():
                correlation = rank_correlation(height_table(assigned.paths, labels))
                rows.append({"tree": of, "images": images, "height correlation": score(correlation)})
        subject.progress(self.name, 3, 4)
        rows += self._retrieval(subject, train_labels, labels, names)
        subject.progress(self.name, 4, 4)
        chosen: dict[str, Any] = {"levels": list(tree.levels)}
        if subject.tree is not None:
            chosen[f"levels, {OWN}"] = list(subject.tree.levels)
        if not nested:
            chosen["height correlation"] = "none, because the label levels are not nested"
        return _summary(rows, names, chosen)

    def _tree(self, subject: Subject) -> PrototypeTree:
        features = subject.features("train").to(subject.device)
        levels = levels_by_number(len(features)) if self.levels is None else self.levels
        steps = self.builder.max_steps

        def progress(level: int, step: int, _rows: int) -> None:
            if steps is not None:
                subject.progress(f"{self.name}, level {level}", min(step + 1, steps), steps)

        return self.builder(features, levels, seed=subject.seed, progress=progress)

    def _references(self, subject: Subject, levels: tuple[int, ...], test: Tensor) -> tuple[Trees, Trees]:
        """Trees, and flat clusters, of one sample of the training images, with the test images.

        The levels are those of the tree; of too small a sample, levels that fit it.
        """
        features = subject.features("train")
        N = len(features)
        features = features[_sample(N, self.sample, subject.seed)].to(subject.device)
        n = len(features)
        sizes = levels if 2 * levels[0] <= n else tuple(levels_by_number(n))
        trees: Trees = {}
        if (n, sizes) != (N, levels):  # otherwise it is the tree itself
            trees[REBUILT, n] = _assigned(self.builder(features, sizes, seed=subject.seed), test)
        subject.progress(self.name, 1, 4)
        ward = HierarchicalKMeans(order="ward", path_steps=0, linked=n)
        trees[WARD, n] = _assigned(ward(features, sizes), test)
        kmeans = self.builder if isinstance(self.builder, HierarchicalKMeans) else HierarchicalKMeans()
        build = replace(kmeans, order="top-down", weighted=False, averaged=0)  # of one level: flat
        flat = [_assigned(build(features, (size,), seed=subject.seed), test) for size in sizes]
        counts = tuple(count for one in flat for count in one.levels)
        return trees, {(FLAT, n): Assigned(counts, torch.cat([one.paths for one in flat], dim=1))}

    def _retrieval(self, subject: Subject, train_labels: Tensor, labels: Tensor, names: list[str]) -> list[Row]:
        """The share of each image's neighbours that are of its class, by every representation there is.

        R-precision looks at as many neighbours as the class has training images, up to MOST_RETRIEVED: coarse
        classes are large, and what tells them from each other is not what finds the ten nearest images.
        """
        rows: list[Row] = []
        some = _sample(len(labels), self.sample, subject.seed)
        # How many training images have the class of each query, per label level: (n, levels).
        sizes = torch.stack([of.bincount()[truth] for of, truth in zip(train_labels.T, labels[some].T, strict=True)], 1)
        most = max(self.neighbours, min(MOST_RETRIEVED, int(sizes.max())))
        for source, (gallery, queries) in _representations(subject, some).items():
            first, all_of_class = torch.zeros(2, len(names), dtype=torch.float64)
            for found in nearest_rows(gallery, queries, most, device=subject.device):
                truth = labels[some[found.queries]]  # (n, levels)
                correct = (train_labels[found.rows.cpu()] == truth[:, None]).double()  # (n, most, levels)
                first += correct[:, : self.neighbours].mean(1).sum(0)
                counted = sizes[found.queries].clamp(1, most)[:, None]  # (n, 1, levels)
                inside = torch.arange(most)[:, None] < counted
                all_of_class += ((correct * inside).sum(1) / counted[:, 0]).sum(0)
            for level, name in enumerate(names):
                figures = {f"precision at {self.neighbours}": first[level], "R-precision": all_of_class[level]}
                found_shares = {figure: share(float(value) / len(some)) for figure, value in figures.items()}
                chance = share(float(sizes[:, level].double().mean()) / len(train_labels))
                rows.append({"from": source, "labels": name} | found_shares | {"chance": chance})
        return rows


def _representations(subject: Subject, some: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """By name: those of all training images, and of some test images."""
    found = {"pooled features": (subject.features("train"), subject.features("test")[some])}
    if subject.representations is not None:
        gallery, queries = subject.representations("train"), subject.representations("test")
        found |= {f"z{level}": (gallery[:, level], queries[some, level]) for level in range(gallery.shape[1])}
    return found


def _sample(N: int, count: int, seed: int) -> Tensor:
    """(n,): indices of the sampled images, ascending; a function of N, count and seed alone."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values


def _assigned(tree: PrototypeTree, features: Tensor) -> Assigned:
    """The images with these features in a tree, by the tree's own way to assign."""
    return Assigned(tuple(tree.levels), tree.paths.cpu()[tree.assign(features).cpu()])


def _level_rows(of: str, images: int, assigned: Assigned, labels: Tensor, names: list[str], seed: int) -> list[Row]:
    """Every level of a tree against every label level."""
    rows: list[Row] = []
    for level, (count, nodes) in enumerate(zip(assigned.levels, assigned.paths.T, strict=True)):
        place = {"tree": of, "images": images, "level": level, "nodes": count, "with test images": len(nodes.unique())}
        for name, truth in zip(names, labels.T, strict=True):
            found = mutual_information(nodes, truth) | {"purity": purity(nodes, truth)}
            found |= {"chance": _by_chance(purity, nodes, truth, seed)}
            figures = {figure: share(value) for figure, value in found.items()}
            rows.append(place | {"labels": name} | figures)
    return rows


def _tree_rows(of: str, images: int, paths: Tensor, labels: Tensor, names: list[str], seed: int) -> list[Row]:
    """A tree, all its levels together, against every label level."""
    return [
        {
            "tree": of,
            "images": images,
            "labels": name,
            "dendrogram purity": share(dendrogram_purity(paths, truth)),
            "chance": share(_by_chance(dendrogram_purity, paths, truth, seed)),
        }
        for name, truth in zip(names, labels.T, strict=True)
    ]


def _by_chance(figure: Callable[[Tensor, Tensor], float], tree: Tensor, labels: Tensor, seed: int) -> float:
    """The mean of a figure over shuffled labels: small nodes are pure by chance."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = (labels[torch.randperm(len(labels), generator=generator)] for _ in range(SHUFFLES))
    return sum(figure(tree, drawn) for drawn in shuffled) / SHUFFLES


def _summary(rows: list[Row], names: list[str], chosen: dict[str, Any]) -> Result:
    """The headline: per tree, the best level per label level and the figures of all levels together."""
    headline: dict[str, Figure] = {}
    for of, mark in ((TREE, ""), (OWN, f", {OWN}")):
        found = [row for row in rows if row.get("tree") == of]
        for name in names if found else []:
            of_labels = [row for row in found if "AMI" in row and row["labels"] == name]
            best = max(of_labels, key=lambda row: float(row["AMI"]))
            headline[f"AMI, {name}{mark}"] = best["AMI"]
            chosen[f"level of AMI, {name}{mark}"] = best["level"]
        for row in found:
            if "dendrogram purity" in row:
                headline[f"dendrogram purity, {row['labels']}{mark}"] = row["dendrogram purity"]
            if "height correlation" in row:
                headline[f"height correlation{mark}"] = row["height correlation"]
    return Result(headline=headline, rows=rows, chosen=chosen)
