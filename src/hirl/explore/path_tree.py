"""The tree that the paths in a file of `hirl embed` describe."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.explore.embed import Arrays
from hirl.hierarchy.tree import PrototypeTree


def tree_of_paths(file: Path, arrays: Arrays, on: Tensor, z0: Tensor) -> PrototypeTree:
    """The tree of paths (n, L), of the levels and parents in the file. Prototypes are the mean directions of images.

    Nodes without images get the direction of all images, for the tree's own prototypes are not known any more: a
    further image is assigned by its path, the way of the default builder. Files of earlier versions do not hold the
    levels and parents: then nodes after the last one with images are not known either, and a node without images gets
    the first parent.
    """
    unit = F.normalize(z0.float(), dim=1)
    overall = F.normalize(unit.mean(0), dim=0)
    prototypes, parents = [], []
    for level, count in enumerate(_levels(file, arrays, on)):
        sums = torch.zeros(count, unit.shape[1]).index_add_(0, on[:, level], unit)
        empty = torch.linalg.vector_norm(sums, dim=1) < 1e-6
        prototypes.append(torch.where(empty[:, None], overall, F.normalize(sums, dim=1)))
        if level + 1 < on.shape[1]:
            parents.append(_parents(file, arrays, on, level, count))
    by_path = len(prototypes) > 1
    return PrototypeTree(tuple(prototypes), tuple(parents), on[:, 0].contiguous(), by_path=by_path)


def _levels(file: Path, arrays: Arrays, on: Tensor) -> list[int]:
    highest = on.amax(0).tolist()
    if "tree_levels" not in arrays:
        return [node + 1 for node in highest]
    levels = arrays["tree_levels"]
    if levels.dtype.kind not in "iu" or levels.shape != (len(highest),) or (levels <= highest).any():
        raise ValueError(f"tree_levels of {str(file)!r} must be the nodes per level of the tree that path goes through")
    sizes: list[int] = levels.tolist()
    return sizes


def _parents(file: Path, arrays: Arrays, on: Tensor, level: int, count: int) -> Tensor:
    name = f"tree_parents_{level}"
    if "tree_levels" not in arrays:
        return torch.zeros(count, dtype=torch.int64).index_copy_(0, on[:, level], on[:, level + 1])
    parents = arrays.get(name)
    if parents is None or parents.dtype.kind not in "iu" or parents.shape != (count,):
        raise ValueError(f"{name} of {str(file)!r} must be the parent of each of the {count:,} nodes of level {level}")
    found = torch.from_numpy(parents.astype("int64"))
    if not torch.equal(found[on[:, level]], on[:, level + 1]):
        raise ValueError(f"{name} of {str(file)!r} does not agree with path")
    return found
