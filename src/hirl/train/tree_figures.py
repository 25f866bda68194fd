"""Figures of a run's successive trees: the share of images that changed leaf, and with labels the purity of nodes."""

from __future__ import annotations

from torch import Tensor

from hirl.hierarchy.tree import NO_LEAF, PrototypeTree
from hirl.metrics.agreement import purity
from hirl.runs.metrics import MOVED_LEAVES, PURITY


class TreeFigures:
    """Figures of each new tree of a run, in order. `labels` (N,) are the images' classes, if they have any."""

    def __init__(self, labels: Tensor | None) -> None:
        self.labels = labels
        self._leaves: Tensor | None = None

    def measure(self, tree: PrototypeTree, *, anew: bool = False) -> dict[str, float]:
        """Return `moved_leaves` and, with labels, `purity_N` for each level N.

        moved_leaves: the share of images whose leaf differs from that in the previous tree. Clustering starts from that
        tree, so leaves keep their numbers, unless the tree was built `anew`. purity_N: the share of images that have
        the most frequent class of their node.
        """
        paths = tree.image_paths.cpu()
        leaves, present = paths[:, 0], paths[:, 0] != NO_LEAF
        figures: dict[str, float] = {}
        if not anew and self._leaves is not None and len(self._leaves) == len(leaves):
            moved = (leaves != self._leaves) & present
            figures[MOVED_LEAVES.name] = float(moved.sum()) / max(1, int(present.sum()))
        self._leaves = leaves
        if self.labels is not None and present.any():
            labels = self.labels[present]
            figures |= {PURITY.at(level): purity(nodes, labels) for level, nodes in enumerate(paths[present].T)}
        return figures
