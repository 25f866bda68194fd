"""An image's path through a tree as plain tensor operations, which every exporter can write down."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.hierarchy.tree import PrototypeTree


class PathFinder(nn.Module):
    """z⁰ (B, D) → path (B, L), the nodes that `tree.path(tree.assign(z0))` finds, and its confidence (B, L).

    The confidence is `tree.margins`: the cosine of the path found, less that of the best path through another node of
    the level. With `tree.by_path` the cosine of a path is the mean over its levels, else that of its leaf.
    """

    leaf_paths: Tensor  # (M_1, L)
    targets: Tensor  # (M_1, D), or (M_1, d) in the tree's reduced space
    mean: Tensor
    axes: Tensor

    def __init__(self, tree: PrototypeTree) -> None:
        super().__init__()
        self.is_reduced = tree.reduced is not None
        self.register_buffer("leaf_paths", tree.paths.clone())
        self.register_buffer("targets", tree.mean_targets().clone())
        if tree.reduced is not None:
            self.register_buffer("mean", tree.reduced.mean.float().clone())
            self.register_buffer("axes", tree.reduced.axes.float().clone())

    def forward(self, z0: Tensor) -> tuple[Tensor, Tensor]:
        rows = F.normalize(z0, dim=1)
        if self.is_reduced:
            rows = F.normalize((rows - self.mean) @ self.axes, dim=1)
        cosines = rows @ self.targets.T  # (B, M_1)
        best, leaf = cosines.max(dim=1)
        path = self.leaf_paths[leaf]  # (B, L)
        confidence = []
        for level in range(self.leaf_paths.shape[1]):
            same = self.leaf_paths[:, level] == path[:, level, None]  # (B, M_1)
            confidence.append(best - cosines.masked_fill(same, -torch.inf).amax(1))
        return path, torch.stack(confidence, dim=1)
