"""A tree of the labels in place of K-means: what L_SPD gains from a tree that is right for a known share of images.

    PYTHONPATH=. hirl compare grocery.npz small/moco_v2 --epochs_factor 2.5 --tasks knn clustering \\
        --classes benchmarks.label_tree.LabelTree --arms \\
        'labels: levels=81,43,3 builder=benchmarks.label_tree.LabelTree builder.data=grocery.npz' \\
        'half wrong: levels=81,43,3 builder=benchmarks.label_tree.LabelTree builder.data=grocery.npz builder.wrong=.5'

The levels are the numbers of classes, and labels must be nested. Only for arms with stored leaves: SwAV assigns images
to the nearest leaf at every step, as does the tree that a finished run is saved with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hirl.data import open_images
from hirl.hierarchy.builder import TreeBuilder
from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.rows import Features
from hirl.hierarchy.tree import PrototypeTree


@dataclass(frozen=True, kw_only=True)
class LabelTree(TreeBuilder):
    """One node per class; a prototype is the mean direction of its class.

    Args:
        data: The labelled images of the run.
        wrong: Share of the images that are given the class of a random image, the same ones in every epoch and run.
    """

    data: str
    wrong: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.wrong <= 1:
            raise ValueError(f"wrong is a share of the images in [0, 1], not {self.wrong}")

    def __call__(
        self,
        features: Features,
        levels: Sequence[int],
        *,
        seed: int = 0,  # noqa: ARG002
        init: PrototypeTree | None = None,  # noqa: ARG002
        index: Tensor | None = None,
        group: dist.ProcessGroup | None = None,
        progress: TreeProgress | None = None,  # noqa: ARG002
    ) -> PrototypeTree:
        if group is not None:
            raise ValueError("LabelTree works with one process only")
        rows = F.normalize(torch.as_tensor(features).float(), dim=1)
        labels = (self._labels() if index is None else self._labels()[index.cpu()]).to(rows.device)
        classes = [torch.unique(labels[:, level], return_inverse=True)[1] for level in range(len(levels))]
        counts = tuple(int(level.max()) + 1 for level in classes)
        if counts != tuple(levels):
            raise ValueError(f"the labels have {counts} classes: give these levels, not {tuple(levels)}")
        prototypes = []
        for count, members in zip(counts, classes, strict=True):
            sums = rows.new_zeros(count, rows.shape[1]).index_add_(0, members, rows)
            prototypes.append(F.normalize(sums, dim=1))
        parents = []
        for fine, coarse in pairwise(classes):
            parent = torch.zeros(int(fine.max()) + 1, dtype=torch.int64, device=rows.device)
            parent[fine] = coarse
            if not torch.equal(parent[fine], coarse):
                raise ValueError("the labels are not nested")
            parents.append(parent)
        return PrototypeTree(tuple(prototypes), tuple(parents), classes[0])

    def _labels(self) -> Tensor:
        """The labels of all training images, (N, label levels), some of them wrong on request."""
        labels = open_images(self.data, split="train").labels
        if labels is None:
            raise ValueError(f"{self.data} has no labels")
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(labels), generator=generator)[: round(self.wrong * len(labels))]
        given = labels.clone()
        given[chosen] = labels[torch.randint(len(labels), (len(chosen),), generator=generator)]
        return given
