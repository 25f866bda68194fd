"""SemanticPaths: the heads h_l, the current tree and the loss L_SPD, for any training loop.

Where a batch gets its leaves: `SemanticPaths.find_leaves`, called by `SemanticPaths.spd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.following import follow
from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.leaves import leaves_by_index
from hirl.hierarchy.levels import check_levels
from hirl.hierarchy.rows import Features, UnitRows
from hirl.hierarchy.settings import Discrimination, Hierarchy
from hirl.hierarchy.spd import Sampling, check_sampling, node_loss, spd_loss
from hirl.hierarchy.tree import NO_LEAF, PrototypeTree
from hirl.ranks import Ranks


class SemanticPaths(nn.Module):
    """Learns z¹…zᴸ from z⁰ (B, D) by semantic path discrimination.

        paths = SemanticPaths(dim=128, levels=(3000, 300, 30))
        loss = loss_image + paths(z0, index)     # 0 before the first refresh
        paths.refresh(features)                  # once per epoch, features (N, D) in data set order

    Args:
        dim: D, the dimension of z⁰.
        levels: Prototypes per level, fine to coarse.
        negatives: Negative paths per image; None for all.
        head_layers: Linear layers per head, of width `dim`, with batch norm and ReLU in between; 0 for no heads: each
            of z¹…zᴸ is z⁰.
        weight: Factor on the loss; 1 as in Eq. 4.
        loss: "paths" is the loss of Eq. 3, `spd_loss`; "nodes" a softmax over the nodes of each level, `node_loss`.
        temperature: That of the softmax.
        sampling: "batch" draws negative paths once per batch, "image" once per image; see `spd_loss`.
        builder: Builds the trees.
    """

    def __init__(
        self,
        dim: int,
        levels: Sequence[int],
        *,
        negatives: int | None = 1000,
        head_layers: int = 2,
        weight: float = 1.0,
        loss: Discrimination = "paths",
        temperature: float = 0.07,
        sampling: Sampling = "batch",
        builder: TreeBuilder = HierarchicalKMeans(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim is {dim}, but must be at least 1")
        check_sampling(negatives, sampling)
        Hierarchy(head_layers=head_layers, weight=weight, loss=loss, temperature=temperature)  # checks the others
        self.dim = dim
        self.levels = check_levels(levels)
        self.head_layers = head_layers
        self.negatives = negatives
        self.weight = weight
        self.loss = loss
        self.temperature = temperature
        self.sampling = sampling
        self.builder = builder
        self.heads = nn.ModuleList(_head(dim, head_layers) for _ in self.levels)
        # Not a buffer: DDP would broadcast the whole tree at every step. The state dict carries it as extra state.
        self._tree: PrototypeTree | None = None

    @property
    def tree(self) -> PrototypeTree | None:
        """The current tree, or None before the first refresh."""
        return self._tree

    @tree.setter
    def tree(self, tree: PrototypeTree | None) -> None:
        if tree is not None and (tree.levels != self.levels or tree.dim != self.dim):
            raise ValueError(
                f"the tree has levels {tree.levels} of dimension {tree.dim}, not {self.levels} of {self.dim}"
            )
        self._tree = tree

    def encode(self, z0: Tensor) -> Tensor:
        """Return z¹…zᴸ (B, L, D) of z⁰ (B, D), which may be of another float type than the heads."""
        self._check_z0(z0, "z0")
        if self.head_layers == 0:
            return z0[:, None].expand(-1, len(self.levels), -1)
        weight = next(self.heads.parameters())
        return torch.stack([head(z0.to(weight.dtype)) for head in self.heads], dim=1)

    def forward(
        self,
        z0: Tensor,
        index: Tensor | None = None,
        *,
        target: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return weight · L_SPD of z⁰ (B, D), what HIRL adds to the loss of the method (Eq. 4); see `spd`."""
        return self.weight * self.spd(z0, index, target=target, generator=generator)

    def spd(
        self,
        z0: Tensor,
        index: Tensor | None = None,
        *,
        target: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return L_SPD of z⁰ (B, D): Eq. 3, or `node_loss`.

        Each image is drawn towards the path of its leaf, which `find_leaves` gets from either the image's `index` (B,)
        in the data set or from `target` (B, D), z⁰ of another view of it. Images that are not in the tree are left out
        of the loss. Before the first tree the loss is 0, with zero gradients for the heads, so that DDP finds all
        parameters used.
        """
        if (index is None) == (target is None):
            raise ValueError("pass either the images' index in the data set or target, z0 of another view")
        self._check_z0(z0, "z0")
        if self.training and len(z0) == 1 and self.head_layers > 1:
            raise ValueError("the heads' batch norm needs a batch of at least 2 images in training, not 1")
        if target is not None:
            self._check_z0(target, "target")
            if len(target) != len(z0):
                raise ValueError(f"target must have a row for each of the {len(z0)} images of z0, not {len(target)}")
        if index is not None:
            _check_index(index, "B")
            if len(index) != len(z0):
                raise ValueError(f"index must have a number for each of the {len(z0)} images of z0, not {len(index)}")
        if self.tree is None:
            return sum((parameter.sum() for parameter in self.parameters()), z0.new_zeros(())) * 0.0
        if self.tree.device != z0.device:
            self.tree = self.tree.to(z0.device)
        z, leaves = self.encode(z0), self.find_leaves(index, target=target)
        if self.tree.count < len(self.tree.leaves):
            inside = leaves != NO_LEAF
            z, leaves = z[inside], leaves[inside]
            if len(leaves) == 0:
                return z.sum() * 0.0
        if self.loss == "nodes":
            return node_loss(z, self.tree, leaves, temperature=self.temperature)
        return spd_loss(
            z,
            self.tree,
            leaves,
            negatives=self.negatives,
            sampling=self.sampling,
            generator=generator,
        )

    def find_leaves(self, index: Tensor | None = None, *, target: Tensor | None = None) -> Tensor:
        """Return c₊¹ (B,), the leaf of each image of a batch; `tree.path(leaves)` is its path from there to the root.

        With `index` (B,), the images' positions in the data set: the leaf that the last clustering stored for each, −1
        for an image that was not part of it.
        With `target` (B, D), z⁰ of another view: the leaf that `tree.assign` finds for it. This serves images that have
        no index, and methods for which the stored leaves are too old. A row without a direction, such as NaN, gets
        an arbitrary leaf; the loss check reports it.
        """
        tree = self.tree
        if tree is None:
            raise ValueError("there is no tree yet, and so no leaf: call refresh first")
        if (index is None) == (target is None):
            raise ValueError("pass either the images' index in the data set or target, z0 of another view")
        if target is not None:
            # Not `assign`, which refuses such a row, and makes every step on a GPU wait for the answer.
            return tree.assign_rows(UnitRows(target.detach(), name="target"))
        assert index is not None
        _check_index(index, "B")
        # Not on a GPU, where reading the values would make every step wait.
        if index.device.type == "cpu" and len(index):
            first, last = int(index.min()), int(index.max())
            if first < 0 or last >= len(tree.leaves):
                images = f"0 … {len(tree.leaves) - 1}, the images of the last refresh"
                raise ValueError(f"index must lie in {images}, not {first} … {last}")
        return tree.leaves[index.to(tree.device)]

    def refresh(
        self,
        features: Features,
        *,
        index: Tensor | None = None,
        images: int | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        progress: TreeProgress | None = None,
        anew: bool = False,
    ) -> PrototypeTree:
        """Build a new tree from the features z⁰ (N, D) of all images, starting from the current tree if there is one.

        `index` (N,): the position of each row in the data set, if the rows are in another order. With a `group`, each
        rank passes its own rows and ends up with the leaves of all images. An image may come twice, as when a sampler
        fills up its last batch. None may be missing, unless `images`, the size of the data set, is given: then the leaf
        of an image without a row is −1. `anew`: start from nothing, for a tree that depends on the features alone.
        """
        columns = UnitRows(features).dim
        if columns != self.dim:
            raise ValueError(f"features have {columns} columns, but dim, the dimension of z0, is {self.dim}")
        if index is not None:
            _check_index(index, "N")
        init = None if anew else self.tree
        tree = self.builder(features, self.levels, seed=seed, init=init, index=index, group=group, progress=progress)
        if len(tree.leaves) != len(features):
            raise ValueError(
                f"{type(self.builder).__name__} returned {len(tree.leaves)} leaves for {len(features)} rows of "
                "features: a tree builder must return one leaf per row"
            )
        self.tree = replace(tree, leaves=leaves_by_index(tree.leaves, index, images, Ranks(group)))
        return self.tree

    def follow(
        self, features: Features, *, index: Tensor | None = None, group: dist.ProcessGroup | None = None
    ) -> PrototypeTree:
        """Keep the tree's nodes and the leaf of every image; the prototypes become the mean directions of `features`.

        The arguments are those of `refresh`.
        """
        if self.tree is None:
            raise ValueError("there is no tree yet, and so no node: call refresh first")
        self.tree = follow(self.tree, features, index, Ranks(group))
        return self.tree

    def reassign(
        self,
        features: Features,
        *,
        index: Tensor | None = None,
        images: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> PrototypeTree:
        """Keep the tree's prototypes and give each image the leaf that `tree.assign` finds for its features.

        The arguments are those of `refresh`. After a refresh with spherical K-means and the same features, nothing
        changes.
        """
        if self.tree is None:
            raise ValueError("there is no tree yet, and so no leaf: call refresh first")
        leaves = leaves_by_index(self.tree.assign(features), index, images, Ranks(group))
        self.tree = replace(self.tree, leaves=leaves.to(self.tree.device))
        return self.tree

    def get_extra_state(self) -> dict[str, Tensor]:
        return {} if self.tree is None else self.tree.tensors()

    def set_extra_state(self, state: Any) -> None:
        self.tree = PrototypeTree.from_tensors(state) if state else None

    def extra_repr(self) -> str:
        compared = f"negatives={self.negatives}" if self.loss == "paths" else f"temperature={self.temperature}"
        return f"dim={self.dim}, levels={self.levels}, loss={self.loss!r}, {compared}, weight={self.weight}"

    def _check_z0(self, z0: Tensor, name: str) -> None:
        if not isinstance(z0, Tensor) or not z0.is_floating_point():
            raise ValueError(f"{name} must be a float tensor of shape (B, {self.dim}), not {_kind(z0)}")
        if z0.ndim != 2 or z0.shape[1] != self.dim:
            raise ValueError(f"{name} must be of shape (B, {self.dim}), not {tuple(z0.shape)}")


def _check_index(index: Tensor, rows: str) -> None:
    if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype != torch.int64:
        remedy = "" if isinstance(index, Tensor) else ": torch.as_tensor(index) makes one"
        raise ValueError(f"index must be an int64 tensor of shape ({rows},), not {_kind(index)}{remedy}")


def _kind(value: object) -> str:
    """A tensor by its type and shape, anything else by its class."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return "a numpy array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _head(dim: int, layers: int) -> nn.Sequential:
    """Build h_l: linear layers with batch norm and ReLU in between and nothing after the last (Sec. 4.1)."""
    if layers == 0:
        return nn.Sequential()
    hidden = [(nn.Linear(dim, dim, bias=False), nn.BatchNorm1d(dim), nn.ReLU(inplace=True)) for _ in range(layers - 1)]
    return nn.Sequential(*(module for block in hidden for module in block), nn.Linear(dim, dim))
