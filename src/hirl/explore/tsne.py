"""t-SNE of features in the plane, coloured by label or by node of the tree (Fig. 3 of the paper).

With labels the default is the paper's choice: up to 2,000 images of each of the first 20 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.explore.collection import Collection

Algorithm = Literal["tsne", "umap"]
COMPONENTS = 50  # of the PCA before t-SNE, as is usual


@dataclass(frozen=True)
class Colouring:
    """Groups to colour by: their names, and the group of each point."""

    key: str  # label-0, tree-2
    name: str
    groups: Sequence[str]
    of: Tensor  # (n,)


def choose_points(collection: Collection, *, classes: int, per_class: int, points: int, seed: int) -> Tensor:
    """(n,): the images to show, in order: some of each of the first classes or, without labels, some of all."""
    random = np.random.default_rng(seed)
    labels = collection.images.labels
    if labels is None:
        chosen = random.choice(len(collection), min(points, len(collection)), replace=False)
        return torch.from_numpy(np.sort(chosen))
    parts = []
    for label in range(min(classes, len(collection.images.label_names[0]))):
        members = (labels[:, 0] == label).nonzero().flatten().numpy()
        parts.append(random.choice(members, min(per_class, len(members)), replace=False))
    return torch.from_numpy(np.sort(np.concatenate(parts)))


def colourings(collection: Collection, points: Tensor) -> list[Colouring]:
    """The colourings by each level of the labels, then by each level of the tree, coarse to fine."""
    found = []
    labels, names = collection.images.labels, collection.images.label_names
    if labels is not None:
        for level, classes in enumerate(names):
            name = f"label, {len(classes)} classes"
            found.append(_compact(f"label-{level}", name, classes, labels[points, level]))
    paths = collection.tree.path(collection.tree.leaves[points])
    for level in reversed(range(len(collection.tree.levels))):
        nodes = [f"node {level}-{node}" for node in range(collection.tree.levels[level])]
        found.append(_compact(f"tree-{level}", f"tree, level {level}", nodes, paths[:, level]))
    return found


def find_colouring(found: Sequence[Colouring], name: str | None) -> Colouring:
    """The colouring named label-0, tree-2 …; `label` or `tree` is the first of its kind, None the first of all."""
    if name is None:
        return found[0]
    by_key: dict[str, Colouring] = {}
    for one in found:
        kind = one.key.partition("-")[0]
        by_key.setdefault(kind, one)
        by_key[one.key] = one
    if name not in by_key:
        raise ValueError(f"colour is {name!r}, but must be one of {', '.join(by_key)}")
    return by_key[name]


def map_features(collection: Collection, level: int | None) -> Tensor:
    """(n, D): z of a level, or the encoder's pooled features."""
    if level is None:
        return collection.features
    if level >= len(collection.z):
        raise ValueError(f"there is no level {level}: {collection.name} has z0 to z{len(collection.z) - 1}")
    return collection.z[level]


def _compact(key: str, name: str, groups: Sequence[str], of: Tensor) -> Colouring:
    """The colouring without empty groups; the others are renumbered in order."""
    present, numbers = of.unique(return_inverse=True)
    return Colouring(key, name, [groups[group] for group in present.tolist()], numbers)


def fitting_perplexity(perplexity: float, images: int) -> float:
    """The perplexity, limited by the number of images: t-SNE uses three times as many neighbours."""
    return min(perplexity, (images - 1) / 3)


def place_points(
    features: Tensor, *, algorithm: Algorithm = "tsne", perplexity: float = 30.0, seed: int = 0
) -> np.ndarray:
    """(n, 2): the coordinates of each row in the plane, each axis from 0 to 1."""
    if len(features) < 5:
        raise ValueError(f"a map has {len(features)} images, but must have at least 5")
    if not perplexity > 1:
        raise ValueError(f"perplexity is {perplexity}, but must be above 1")
    unit = F.normalize(features.float(), dim=1).numpy()
    if unit.shape[1] > COMPONENTS and len(unit) > COMPONENTS:
        from sklearn.decomposition import PCA

        unit = PCA(COMPONENTS, random_state=seed).fit_transform(unit)
    if algorithm == "umap":
        placed = _umap(unit, seed)
    elif algorithm == "tsne":
        from sklearn.manifold import TSNE

        fitting = fitting_perplexity(perplexity, len(unit))
        placed = TSNE(perplexity=fitting, init="pca", learning_rate="auto", random_state=seed).fit_transform(unit)
    else:
        raise ValueError(f"algorithm is {algorithm!r}, but must be one of tsne, umap")
    low, high = placed.min(0), placed.max(0)
    return (placed - low) / np.maximum(high - low, 1e-12)


def _umap(rows: np.ndarray, seed: int) -> np.ndarray:
    try:
        from umap import UMAP
    except ImportError as error:
        raise ValueError(
            "the algorithm umap needs the library umap-learn, which is not installed: pip install umap-learn, or "
            "leave out --algorithm for t-SNE"
        ) from error
    neighbours = min(15, len(rows) - 1)
    return UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1).fit_transform(rows)
