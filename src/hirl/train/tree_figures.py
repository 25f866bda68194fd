"""How the trees of a run develop: how many images moved to another leaf, and how pure the nodes are, given labels."""

from __future__ import annotations

from torch import Tensor

from hirl.hierarchy.tree import ABSENT, PrototypeTree
from hirl.metrics.agreement import purity
from hirl.runs.metrics import MOVED_LEAVES, PURITY


class TreeFigures:
    """Figures of each new tree of a run, in order. `labels` (N,) are the images' classes, if they have any."""

    def __init__(self, labels: Tensor | None) -> None:
        self.labels = labels
        self._leaves: Tensor | None = None

    def measure(self, tree: PrototypeTree, *, anew: bool = False) -> dict[str, float]:
        """Return `moved_leaves` and, with labels, `purity_N` for each level N.

        moved_leaves: the share of images in another leaf than that of the last tree. Clustering starts from that tree,
        so leaves keep their numbers, unless it was built `anew`. purity_N: the share of images of the most frequent
        class of their node.
        """
        paths = tree.image_paths.cpu()
        leaves, present = paths[:, 0], paths[:, 0] != ABSENT
        figures: dict[str, float] = {}
        if not anew and self._leaves is not None and len(self._leaves) == len(leaves):
            moved = (leaves != self._leaves) & present
            figures[MOVED_LEAVES.name] = float(moved.sum()) / max(1, int(present.sum()))
        self._leaves = leaves
        if self.labels is not None and present.any():
            labels = self.labels[present]
            figures |= {PURITY.at(level): purity(nodes, labels) for level, nodes in enumerate(paths[present].T)}
        return figures
