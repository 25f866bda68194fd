"""A tree that keeps its nodes and images while the features change: its prototypes follow them.

For a strong initial encoder: its first tree is right for most images, and rebuilding it from features in training makes
it worse.
"""

from __future__ import annotations

from torch import Tensor

from hirl.hierarchy.mean_directions import mean_directions
from hirl.hierarchy.rows import Features, UnitRows
from hirl.hierarchy.tree import PrototypeTree
from hirl.ranks import Ranks


def follow(tree: PrototypeTree, features: Features, index: Tensor | None, ranks: Ranks) -> PrototypeTree:
    """Return the tree with the mean directions of the nodes' images as prototypes.

    features (n, D), of any dimension, of the images at `index` (n,), or of all in order; each process passes its own. A
    node without images gets the mean direction of all of them.
    """
    rows = UnitRows(features)
    tree = tree.to(rows.device)
    leaves = tree.leaves if index is None else tree.leaves[index.to(rows.device)]
    prototypes = mean_directions(rows, leaves, tree.levels, tree.parents, ranks)
    return PrototypeTree(prototypes, tree.parents, tree.leaves, by_path=tree.by_path)
