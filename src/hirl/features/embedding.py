"""Embedded images: an encoder's pooled features, and a run's z⁰…zᴸ and paths, with the tree that paths describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.features.extractor import Extractor
from hirl.features.feature_cache import read_only_tensor
from hirl.features.feature_files import Arrays
from hirl.hierarchy.tree import NO_LEAF, PrototypeTree


@dataclass(frozen=True)
class Embedding:
    """Row i of every tensor belongs to image i. What is unknown is None or empty; at least `features` or `z` is there.

    features      (N, width) of the encoder
    z             z⁰…zᴸ, (N, D) each, of the run's heads
    readable      (N,) whether the image could be read; if not, its features and z are NaN and its path is −1
    path          (N, L) nodes of the run's tree, fine → coarse
    tree_levels   nodes per level of that tree
    tree_parents  the parent of each node, of every level but the last
    """

    features: Tensor | None
    z: tuple[Tensor, ...]
    readable: Tensor
    path: Tensor | None = None
    tree_levels: tuple[int, ...] = ()
    tree_parents: tuple[Tensor, ...] = ()

    @property
    def finest(self) -> Tensor:
        """What trees are built over: z⁰, else the features."""
        rows = self.z[0] if self.z else self.features
        assert rows is not None
        return rows

    def arrays(self, images: ImageSet) -> Arrays:
        """The arrays by their names in files, with the paths and labels of the images."""
        found: Arrays = {"image": np.array([images.path(index) for index in range(len(images))])}
        found |= {"readable": self.readable.numpy()}
        found |= {} if self.features is None else {"features": self.features.numpy()}
        found |= {f"z{level}": rows.numpy() for level, rows in enumerate(self.z)}
        if self.path is not None:
            found |= {"path": self.path.numpy(), "tree_levels": np.array(self.tree_levels)}
            found |= {f"tree_parents_{level}": parents.numpy() for level, parents in enumerate(self.tree_parents)}
        if images.labels is not None:
            found |= {"labels": images.labels.numpy()}
            found |= {f"classes_{level}": np.array(names) for level, names in enumerate(images.label_names)}
        return found

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Embedding:
        """From the arrays of a file, which are not copied."""
        rows = {name: read_only_tensor(array) for name, array in arrays.items() if array.dtype.kind in "fiub"}
        features, path = rows.get("features"), rows.get("path")
        z = tuple(rows[f"z{level}"] for level in range(len(rows)) if f"z{level}" in rows)
        count = len(features if features is not None else z[0])
        levels: list[Any] = arrays["tree_levels"].tolist() if "tree_levels" in arrays else []
        return cls(
            features,
            z,
            rows.get("readable", torch.ones(count, dtype=torch.bool)),
            None if path is None else path.long(),
            tuple(levels),
            tuple(rows[f"tree_parents_{level}"].long() for level in range(len(levels) - 1)),
        )


def embed_images(extractor: Extractor, images: ImageSet) -> Embedding:
    """Features, z⁰…zᴸ and paths of all images; only a run has z and a tree."""
    extractor.check(images.channels)
    features, readable = extractor.features(images), extractor.readable(images)
    if extractor.encoder.run is None:
        return Embedding(features, (), readable)
    z = extractor.representations(images)  # (N, 1 + L, D)
    tree = extractor.encoder.tree
    if tree is None:
        return Embedding(features, z.unbind(1), readable)
    path = torch.full((len(images), len(tree.levels)), NO_LEAF)
    path[readable] = tree.path(tree.assign(z[readable, 0]))
    parents = tuple(level.cpu() for level in tree.parents)
    return Embedding(features, z.unbind(1), readable, path, tree.levels, parents)


def embed_without_heads(extractor: Extractor, images: ImageSet, *, trained_on: bool) -> Embedding:
    """Features of all images, with the leaves that they have in the run's tree if it was trained on them."""
    features, readable = extractor.features(images), extractor.readable(images)
    tree = extractor.encoder.tree
    if tree is None or not trained_on or len(tree.leaves) != len(images):
        return Embedding(features, (), readable)
    return Embedding(
        features, (), readable, tree.image_paths, tree.levels, tuple(level.cpu() for level in tree.parents)
    )


def tree_of_paths(embedding: Embedding, path: Tensor, z0: Tensor) -> PrototypeTree:
    """The tree of paths (n, L) and z⁰ (n, D) of images, which are those of an embedding that could be read.

    Prototypes are the mean directions of images; nodes without images get the direction of all images. The original
    prototypes are lost; new images are assigned by path, as with the default builder. A file of another program may
    lack levels and parents: then nodes after the last one with images are lost too, and a node without images gets the
    first parent.
    """
    unit = F.normalize(z0.float(), dim=1)
    overall = F.normalize(unit.mean(0), dim=0)
    sizes = embedding.tree_levels or tuple(node + 1 for node in path.amax(0).tolist())
    prototypes, parents = [], list(embedding.tree_parents)
    for level, count in enumerate(sizes):
        sums = torch.zeros(count, unit.shape[1]).index_add_(0, path[:, level], unit)
        empty = torch.linalg.vector_norm(sums, dim=1) < 1e-6
        prototypes.append(torch.where(empty[:, None], overall, F.normalize(sums, dim=1)))
        if not embedding.tree_levels and level + 1 < len(sizes):
            above = torch.zeros(count, dtype=torch.int64)
            parents.append(above.index_copy_(0, path[:, level], path[:, level + 1]))
    leaves = path[:, 0].contiguous()
    return PrototypeTree(tuple(prototypes), tuple(parents), leaves, by_path=len(prototypes) > 1)
