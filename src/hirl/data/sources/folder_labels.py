"""Labels at several levels: from the images' folders, or from given arrays."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.data.sources.image_set import LabelNames

Folder = tuple[str, ...]  # the folder names from the root of the set down to an image


def folder_labels(folders: Sequence[Folder]) -> tuple[Tensor, LabelNames] | None:
    """Labels per folder and depth, finest first: (number of folders, levels), and the names per level.

    A class is a path from the root, so every class has one parent: the labels form a tree. Folders shared by all images
    are left out. A folder that ends early represents itself at the finer levels. None if some images are in no class
    folder, or all in the same.
    """
    depths = enumerate(zip(*folders, strict=False))
    shared = next((depth for depth, names in depths if len(set(names)) > 1), min(map(len, folders)))
    folders = [folder[shared:] for folder in folders]
    depth = max(map(len, folders))
    if depth == 0 or any(not folder for folder in folders):
        return None
    columns, names = [], []
    for level in range(depth, 0, -1):
        ancestors = [folder[:level] for folder in folders]
        classes = sorted(set(ancestors), key=lambda folder: [os.fsencode(part) for part in folder])
        number = {path: index for index, path in enumerate(classes)}
        columns.append(torch.tensor([number[path] for path in ancestors]))
        count = Counter(path[-1] for path in classes)  # where two folders of a level have one name, the full path is it
        names.append(tuple(one_line(path[-1] if count[path[-1]] == 1 else "/".join(path)) for path in classes))
    return torch.stack(columns, dim=1), tuple(names)


def given_labels(labels: object, *, count: int, name: str) -> tuple[Tensor, LabelNames]:
    """Labels given as an array: `count` integers or names, or a (count, levels) table, finest first."""
    table = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.shape[1] == 0:
        raise ValueError(f"the labels of {name} have shape {table.shape}, but must have (N,) or (N, levels)")
    if len(table) != count:
        raise ValueError(f"{name} has {count} images and {len(table)} labels, but must have one label per image")
    columns = [_numbered(column, name) for column in table.T]
    return torch.stack([numbers for numbers, _ in columns], dim=1), tuple(names for _, names in columns)


def _numbered(column: np.ndarray, name: str) -> tuple[Tensor, tuple[str, ...]]:
    if column.dtype.kind == "U":
        names, numbers = np.unique(column, return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), tuple(one_line(str(value)) for value in names)
    if column.dtype.kind not in "iu":
        raise ValueError(f"the labels of {name} are of type {column.dtype}, but must be integers or names")
    if column.min() < 0:
        raise ValueError(f"the labels of {name} contain {column.min()}, but must be at least 0")
    return torch.from_numpy(column.astype(np.int64)), tuple(map(str, range(int(column.max()) + 1)))
