"""The seam for clustering: a tree builder turns features into a tree of prototypes.

Training, `hirl cluster` and the evaluations take any `TreeBuilder`. To try another algorithm, subclass it and pass an
instance: `Hierarchy(builder=MyBuilder())` in Python, `--hierarchy.builder my_package.MyBuilder` on the command line.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch.distributed as dist
from torch import Tensor

from hirl.hierarchy.kmeans import Order, TreeProgress, kmeans_tree
from hirl.hierarchy.rows import Features
from hirl.hierarchy.tree import PrototypeTree


class TreeBuilder(ABC):
    """Builds a tree from features.

    The constructor stores its typed, keyword-only arguments under their own names, so that a builder can be written to
    YAML and back.
    """

    @abstractmethod
    def __call__(
        self,
        features: Features,
        levels: Sequence[int],
        *,
        seed: int = 0,
        init: PrototypeTree | None = None,
        index: Tensor | None = None,
        group: dist.ProcessGroup | None = None,
        progress: TreeProgress | None = None,
    ) -> PrototypeTree:
        """Return a tree of `levels` prototypes, fine → coarse, over the rows of `features` (N, D).

        `tree.leaves` holds one leaf per row, in the order of the rows. The same arguments must give the same tree.

        Args:
            features: A tensor on any device or an array, of any float type; only the direction of a row counts.
            levels: Prototypes per level, fine to coarse.
            seed: The seed of all random draws.
            init: The tree of the last call over earlier features of the same images; a builder may start from it.
            index: (N,) The position of each row in the data set, if the rows are in another order.
            group: The processes that hold the rows together. Each passes its own rows and gets their leaves;
                prototypes and parents must be the same on all of them.
            progress: Called with (level, step, rows done) while the tree is built.
        """

    @property
    def max_steps(self) -> int | None:
        """Upper bound on the steps per level that `progress` reports, or None if there is none."""
        return None

    def rows_per_step(self, N: int, levels: Sequence[int]) -> list[int]:
        """Rows processed per step at each level, for N rows in total."""
        return [N] * len(levels)

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments and their values."""
        names = list(inspect.signature(type(self)).parameters)
        for name in names:
            if not hasattr(self, name):
                raise ValueError(f"{type(self).__name__} must store its argument {name!r} as an attribute of that name")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class HierarchicalKMeans(TreeBuilder):
    """Hierarchical K-means: top-down, bottom-up as in Alg. 1, or started by Ward linkage.

    On a CPU the same features and seed give the same bits, however the rows are ordered or spread over processes (if
    `index` is passed).

    Args:
        iterations: Maximum number of Lloyd steps per level.
        restarts: Number of starts per level; the one with the smallest total distance is kept.
        tolerance: A level ends when at most this share of its rows changes its prototype.
        spherical: Keep prototypes at unit length, so that `tree.assign(features) == tree.leaves`. False: plain means,
            as in the paper, scaled to unit length at the end.
        order: "top-down": K-means of the features into the coarsest level, then of the images of each node into its
            children; an image belongs to the path nearest to it over all levels. "bottom-up", as in Alg. 1: K-means of
            the features into the finest level, then of each level's prototypes for the next. "ward": Ward linkage of
            the features, cut into the levels; then as top-down.
        weighted: Bottom-up only: a prototype counts as many times as it has images. False as in Alg. 1, where many
            small nodes outvote a few large ones.
        path_steps: Top-down and Ward: Lloyd steps that settle all levels together at the end. With the previous epoch's
            tree only these steps run, unless more than 5 % of its leaves become empty.
        linked: Ward only: the most rows that linkage compares pairwise. Larger sets are first reduced to this many
            clusters by K-means; levels with more than half as many nodes are then split top-down.
        averaged: Ward only: before linkage each row is averaged with this many nearest rows, so that points between two
            groups do not join them; 0 for the row alone. Prototypes are means of the rows alone.
        centre: Subtract the mean of the features before clustering. With centre, components or whiten, the tree stores
            this map in its file and `tree.assign` applies it.
        components: Cluster this many principal components of the features; null for all.
        whiten: Divide each principal component by its standard deviation to this power: 0.5 lets the many small
            components count more, 1 makes all count alike.
    """

    iterations: int = 20
    restarts: int = 1
    tolerance: float = 0.002
    spherical: bool = True
    order: Order = "top-down"
    weighted: bool = False
    path_steps: int = 5
    linked: int = 5000
    averaged: int = 0
    centre: bool = False
    components: int | None = None
    whiten: float = 0.0

    def __post_init__(self) -> None:
        if self.order == "ward" and not self.spherical:
            raise ValueError("order ward needs spherical: its nodes are mean directions")
        for name in ("iterations", "restarts", "linked"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.order not in get_args(Order):
            raise ValueError(f"order is {self.order!r}, but must be one of {', '.join(get_args(Order))}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance is a share of the rows in [0, 1), not {self.tolerance}")
        if self.averaged < 0:
            raise ValueError(f"averaged is {self.averaged}, but must be at least 0")
        if self.averaged and self.order != "ward":
            raise ValueError(f"averaged is for order ward, not {self.order}")
        if self.weighted and self.order != "bottom-up":
            raise ValueError(f"weighted is for order bottom-up: {self.order}, every image counts once anyway")
        if self.path_steps < 0:
            raise ValueError(f"path_steps is {self.path_steps}, but must be at least 0")
        if self.components is not None and self.components < 1:
            raise ValueError(f"components is {self.components}, but must be at least 1, or null for all")
        if not 0 <= self.whiten <= 1:
            raise ValueError(f"whiten is {self.whiten}, but must be between 0 (not at all) and 1 (fully)")

    @property
    def max_steps(self) -> int:
        return self.restarts * (self.iterations + 1)

    def rows_per_step(self, N: int, levels: Sequence[int]) -> list[int]:
        return [N, *levels[:-1]] if self.order == "bottom-up" else [N] * len(levels)

    def __call__(
        self,
        features: Features,
        levels: Sequence[int],
        *,
        seed: int = 0,
        init: PrototypeTree | None = None,
        index: Tensor | None = None,
        group: dist.ProcessGroup | None = None,
        progress: TreeProgress | None = None,
    ) -> PrototypeTree:
        """Return the tree; see `TreeBuilder`. With `init`, the first start of each level is that tree's prototypes."""
        return kmeans_tree(self, features, levels, seed=seed, init=init, index=index, group=group, progress=progress)


# For trees over an encoder's pooled features. Over z⁰, which training compares by cosine, nothing is reduced.
POOLED_FEATURES = HierarchicalKMeans(order="ward", averaged=5, centre=True, components=128, whiten=0.5)


def hierarchical_kmeans(
    features: Features,
    levels: Sequence[int],
    *,
    seed: int = 0,
    init: PrototypeTree | None = None,
    index: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    progress: TreeProgress | None = None,
    **settings: Any,
) -> PrototypeTree:
    """Build a tree by hierarchical K-means in one call: `HierarchicalKMeans(**settings)(features, levels, ...)`."""
    build = HierarchicalKMeans(**settings)
    return build(features, levels, seed=seed, init=init, index=index, group=group, progress=progress)
