"""A tree that keeps its nodes and images while the features change: its prototypes follow them.

For an encoder that starts strong: the tree over its first features is right for most images, and one that is built anew
from features in training can only drift away from it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.rows import Features, UnitRows
from hirl.hierarchy.tree import ABSENT, PrototypeTree
from hirl.ranks import Ranks


def follow(tree: PrototypeTree, features: Features, index: Tensor | None, ranks: Ranks) -> PrototypeTree:
    """Return the tree with the mean directions of the nodes' images as prototypes.

    features (n, D), of any dimension, of the images at `index` (n,), or of all in order; each process passes its own. A
    node without images gets the mean direction of all of them.
    """
    rows = UnitRows(features)
    path = (tree.image_paths if index is None else tree.image_paths[index.to(tree.device)]).to(rows.device)  # (n, L)
    inside = path[:, 0] != ABSENT
    units, path = rows[:][inside], path[inside]
    overall = F.normalize(ranks.sum(units.sum(0)), dim=0)
    prototypes = []
    for level, size in enumerate(tree.levels):
        sums = ranks.sum(units.new_zeros(size, units.shape[1]).index_add_(0, path[:, level], units))
        lengths = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
        prototypes.append(torch.where(lengths > 1e-6, sums / lengths.clamp(min=1e-6), overall))
    return PrototypeTree(tuple(prototypes), tree.parents, tree.leaves, by_path=tree.by_path)
