"""The tree of prototypes: built by a tree builder, read by semantic path discrimination."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from hirl.files import CHECKSUM, atomic_write, verify
from hirl.hierarchy.nearest import nearest
from hirl.hierarchy.reduction import ReducedSpace
from hirl.hierarchy.rows import Features, UnitRows

FORMAT = "hirl prototype tree 1"
BY_PATH = "by_path"  # the name of a tensor that only trees with `by_path` have in their files
REDUCED = "reduced."  # how the names of tensors begin that only trees with `reduced` have
NO_LEAF = -1  # the leaf of an image that is not in the tree


@dataclass(frozen=True, eq=False, repr=False)
class PrototypeTree:
    """L levels of prototypes, fine → coarse, and the leaf of every image.

    `prototypes[l]` (M_l, D) of unit length; `parents[l]` (M_l,), each node's parent at level l + 1, for all levels but
    the last; `leaves` (N,), the node at level 0 of every image, or −1 for an image that is not in the tree because it
    could not be read. A node may have no children and no images. A tree is immutable.

    `by_path`: how `assign` finds the leaf of an image. False: the leaf nearest by cosine. True: the leaf whose path has
    the largest sum of cosines over all levels, so that coarse nodes are not decided by a single leaf.

    `reduced`: the space that the images were clustered in, if it is not that of the features. `assign` compares there,
    with the prototypes of that space; `prototypes` are then the mean directions of the nodes' features (Eq. 2).
    """

    prototypes: tuple[Tensor, ...]
    parents: tuple[Tensor, ...]
    leaves: Tensor
    by_path: bool = False
    reduced: ReducedSpace | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prototypes", tuple(self.prototypes))
        object.__setattr__(self, "parents", tuple(self.parents))
        if not self.prototypes:
            raise ValueError("a prototype tree needs at least one level of prototypes")
        if len(self.parents) != len(self.prototypes) - 1:
            raise ValueError(
                f"{len(self.prototypes)} levels of prototypes need {len(self.prototypes) - 1} tensors of parents, "
                f"not {len(self.parents)}"
            )
        for level, nodes in enumerate(self.prototypes):
            _check_prototypes(nodes, level, dim=self.prototypes[0].shape[-1])
        if self.reduced is not None:
            if len(self.reduced.mean) != self.dim or tuple(map(len, self.reduced.prototypes)) != self.levels:
                raise ValueError(f"the reduced space must be of dimension {self.dim} and have the levels {self.levels}")
            for level, nodes in enumerate(self.reduced.prototypes):
                _check_prototypes(nodes, level, dim=self.reduced.axes.shape[1])
        for level, parents in enumerate(self.parents):
            _check_ids(parents, f"parents[{level}]", len(self.prototypes[level + 1]))
            if len(parents) != len(self.prototypes[level]):
                raise ValueError(
                    f"parents[{level}] must name a parent for each of the {len(self.prototypes[level])} nodes of "
                    f"level {level}, not {len(parents)}"
                )
        _check_ids(self.leaves, "leaves", len(self.prototypes[0]), lowest=NO_LEAF)

    def __repr__(self) -> str:
        return f"PrototypeTree(levels={self.levels}, dim={self.dim}, images={self.count})"

    def _repr_html_(self) -> str:
        from hirl.hierarchy.notebook import tree_html

        return tree_html(self)

    @property
    def levels(self) -> tuple[int, ...]:
        """Nodes per level, fine → coarse."""
        return tuple(len(nodes) for nodes in self.prototypes)

    @property
    def dim(self) -> int:
        return self.prototypes[0].shape[1]

    @property
    def device(self) -> torch.device:
        return self.prototypes[0].device

    @cached_property
    def paths(self) -> Tensor:
        """(M_1, L): the path of every leaf, fine → coarse."""
        path = [torch.arange(self.levels[0], device=self.device)]
        for parents in self.parents:
            path.append(parents[path[-1]])
        return torch.stack(path, dim=1)

    @cached_property
    def image_paths(self) -> Tensor:
        """(N, L): the path of every image, fine → coarse; −1 for images that are not in the tree."""
        paths = self.paths[self.leaves.clamp(min=0)]
        return torch.where(self.leaves[:, None] == NO_LEAF, NO_LEAF, paths)

    @cached_property
    def count(self) -> int:
        """Number of images in the tree: all but those without a leaf."""
        return int((self.leaves != NO_LEAF).sum())

    def path(self, leaf: int | Tensor) -> Tensor:
        """Return the nodes (…, L) from each leaf up to its root."""
        leaves = torch.as_tensor(leaf, device=self.device)
        if leaves.device.type == "cpu" and leaves.numel():  # on a GPU, reading the values would make the caller wait
            lowest, highest = int(leaves.min()), int(leaves.max())
            if lowest < 0 or highest >= self.levels[0]:
                if lowest == NO_LEAF and leaves.ndim:
                    raise ValueError("there is no leaf -1, which stands for an image not in the tree: use image_paths")
                wrong = lowest if lowest < 0 else highest
                raise ValueError(f"there is no leaf {wrong}: the tree has {self.levels[0]}, counted from 0")
        return self.paths[leaves]

    def images(self, level: int, node: int) -> Tensor:
        """Return the indices of the images below a node."""
        self._check_node(level, node)
        return (self.image_paths[:, level] == node).nonzero().flatten()

    def children(self, level: int, node: int) -> Tensor:
        """Return the nodes of level − 1 below a node; none below a leaf."""
        self._check_node(level, node)
        if level == 0:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        return (self.parents[level - 1] == node).nonzero().flatten()

    def sizes(self, level: int) -> Tensor:
        """Return the number of images (M_l,) of each node of a level."""
        self._check_level(level)
        nodes = self.image_paths[:, level]
        return torch.bincount(nodes[nodes != NO_LEAF], minlength=self.levels[level])

    def assign(self, features: Features) -> Tensor:
        """Return the leaf (n,) of each row of `features` (n, D): the nearest one, or with `by_path` the best path's."""
        rows = UnitRows(features)
        if rows.dim != self.dim:
            raise ValueError(f"features have {rows.dim} columns, but the tree's prototypes have {self.dim}")
        fault = rows.fault()
        if fault is not None:
            raise ValueError(fault)
        return self.assign_rows(rows)

    def assign_rows(self, rows: UnitRows) -> Tensor:
        """As `assign`, for rows that have been checked."""
        leaves = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
        rows = rows if self.reduced is None else self.reduced.project(rows)
        for part in nearest(rows, self.targets().to(rows.device)):
            leaves[part.chunk] = part.which
        return leaves

    def margins(self, features: Features, leaves: Tensor) -> Tensor:
        """Return the margin (n, L) of each row of `features` (n, D) at every level, given its leaf (n,).

        The margin is the score of the row's path, as `assign` compares, minus that of the best path through another
        node of the level, per level of the path; about 0 on a border, ∞ where there is no other node.
        """
        rows = UnitRows(features)
        rows = rows if self.reduced is None else self.reduced.project(rows)
        targets, levels = self.mean_targets().to(rows.device), self.levels
        paths, leaves = self.paths.to(rows.device), leaves.to(rows.device)
        margins = torch.empty(len(rows), len(levels), device=rows.device)
        for chunk in rows.chunks(2 * len(targets)):
            scores = rows[chunk] @ targets.T  # (n, M_1)
            own = scores.gather(1, leaves[chunk, None])
            for level, nodes in enumerate(levels):
                best = torch.full((len(scores), nodes), -torch.inf, device=rows.device)
                best.scatter_reduce_(1, paths[:, level].expand_as(scores), scores, "amax")
                best.scatter_(1, paths[leaves[chunk], level, None], -torch.inf)
                margins[chunk, level] = own[:, 0] - best.amax(1)
        return margins

    def targets(self) -> Tensor:
        """Return what `assign` compares rows with, one row per leaf: (M_1, D), or (M_1, d) in the reduced space.

        That is its prototype, or with `by_path` the sum of the prototypes on its path: a row's product with the sum is
        the sum of its cosines with the path, in one matrix product instead of one per level.
        """
        levels = self.prototypes if self.reduced is None else self.reduced.prototypes
        if not self.by_path:
            return levels[0].float()
        sums = levels[-1].float()
        for nodes, parents in zip(reversed(levels[:-1]), reversed(self.parents), strict=True):
            sums = nodes.float() + sums[parents]
        return sums

    def mean_targets(self) -> Tensor:
        """As `targets`, but the mean over the levels of a path, as confidence is measured by."""
        return self.targets() / len(self.levels) if self.by_path else self.targets()

    def to(self, device: str | torch.device) -> PrototypeTree:
        """Return the tree on a device."""
        return self.from_tensors({name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tree as named tensors, for files and state dicts."""
        named = {f"prototypes.{level}": nodes for level, nodes in enumerate(self.prototypes)}
        named |= {f"parents.{level}": parents for level, parents in enumerate(self.parents)}
        if self.reduced is not None:
            named |= {f"{REDUCED}{name}": tensor for name, tensor in self.reduced.tensors().items()}
        return named | {"leaves": self.leaves} | ({BY_PATH: torch.tensor(True)} if self.by_path else {})

    @classmethod
    def from_tensors(cls, named: dict[str, Tensor]) -> PrototypeTree:
        named = dict(named)
        by_path = bool(named.pop(BY_PATH, False))
        reduced = {name.removeprefix(REDUCED): named.pop(name) for name in list(named) if name.startswith(REDUCED)}
        levels = sum(name.startswith("prototypes.") for name in named)
        expected = {f"prototypes.{level}" for level in range(levels)} | {"leaves"}
        expected |= {f"parents.{level}" for level in range(levels - 1)}
        if levels == 0 or set(named) != expected:
            raise ValueError(f"expected tensors prototypes.0 …, parents.0 … and leaves, found {sorted(named)}")
        return cls(
            prototypes=tuple(named[f"prototypes.{level}"] for level in range(levels)),
            parents=tuple(named[f"parents.{level}"] for level in range(levels - 1)),
            leaves=named["leaves"],
            by_path=by_path,
            reduced=ReducedSpace.from_tensors(reduced, levels) if reduced else None,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tree as a .safetensors file, atomically."""
        if Path(path).suffix != ".safetensors":
            raise ValueError(f"path is {os.fspath(path)!r}, but must end in .safetensors, the format of trees")
        from safetensors.torch import save_file

        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self.tensors().items()}
        with atomic_write(path, checksum=True) as aside:  # one key: safetensors writes several in a random order
            save_file(tensors, aside, metadata={"format": f"{FORMAT} {CHECKSUM}"})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PrototypeTree:
        """Read a file that `save` wrote; a ValueError for any other file."""
        from safetensors import SafetensorError, safe_open

        if Path(path).is_dir():
            raise ValueError(f"{os.fspath(path)!r} is a folder, not a prototype tree")
        verify(Path(path))
        try:
            with safe_open(path, framework="pt") as file:
                written = (file.metadata() or {}).get("format")
                named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ValueError(f"{os.fspath(path)!r} is not a prototype tree, or is cut short: {error}") from error
        if str(written).partition(" hirl-")[0] != FORMAT:
            raise ValueError(f"{os.fspath(path)!r} is not a prototype tree: its format is {written!r}, not {FORMAT!r}")
        try:
            return cls.from_tensors(named)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)!r} is not a valid prototype tree: {error}") from error

    def _check_level(self, level: int) -> None:
        if not 0 <= level < len(self.levels):
            raise ValueError(f"there is no level {level}: the tree has levels 0 (finest) to {len(self.levels) - 1}")

    def _check_node(self, level: int, node: int) -> None:
        self._check_level(level)
        if not 0 <= node < self.levels[level]:
            raise ValueError(f"level {level} has no node {node}: it has {self.levels[level]}, counted from 0")


def is_tree(path: Path) -> bool:
    """Whether a file is one that `PrototypeTree.save` wrote, such as those of `hirl cluster`."""
    try:
        PrototypeTree.load(path)
    except (ValueError, OSError):
        return False
    return True


def _check_prototypes(nodes: Tensor, level: int, *, dim: int) -> None:
    name = f"prototypes[{level}]"
    if not isinstance(nodes, Tensor) or not nodes.is_floating_point() or nodes.ndim != 2 or 0 in nodes.shape:
        what = f"{nodes.dtype} {tuple(nodes.shape)}" if isinstance(nodes, Tensor) else type(nodes).__name__
        raise ValueError(f"{name} must be a float tensor of shape (M, D), not {what}")
    if nodes.shape[1] != dim:
        raise ValueError(f"{name} has {nodes.shape[1]} columns, but prototypes[0] has {dim}")
    length = torch.linalg.vector_norm(nodes.float(), dim=1)
    # Half-precision prototypes are unit length to about 1e-2 only.
    wrong = ~((length - 1).abs() <= max(1e-3, 2 * torch.finfo(nodes.dtype).eps))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(f"{name} must have unit length, but row {row} has length {float(length[row]):.6g}")


def _check_ids(ids: Tensor, name: str, count: int, *, lowest: int = 0) -> None:
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 1:
        what = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"{name} must be an int64 tensor of one dimension, not {what}")
    wrong = (ids < lowest) | (ids >= count)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(f"{name}[{row}] is {int(ids[row])}, but there are {count} nodes to point at, counted from 0")
