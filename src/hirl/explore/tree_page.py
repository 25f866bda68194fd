"""The tree page, on which users browse and name the nodes of a tree with their images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hirl.data.own_folders import SHEETS
from hirl.explore.collection import Collection
from hirl.explore.kept_tree import tree_id
from hirl.explore.node_names import suggest_names
from hirl.explore.page import file_data, pack, pack_fractions, page_folder, write_page
from hirl.explore.thumbnails import LARGEST, write_sheets
from hirl.hierarchy.groups import place_in_group
from hirl.hierarchy.tree import PrototypeTree
from hirl.terminal.progress import Progress, no_progress

COVERS = 6  # images that represent a node


def write_tree_page(
    collection: Collection,
    folder: Path,
    *,
    names: Mapping[str, str] | None = None,
    thumbnail: int = LARGEST,
    progress: Progress = no_progress,
) -> None:
    """Write the page to `folder`/index.html, with thumbnails of at most `thumbnail` pixels beside it.

    `names`: names of nodes to begin with, by level and number ("2-17").
    """
    typical = collection.typicality()  # (n, L)
    margins = collection.tree.margins(collection.z[0], collection.tree.leaves)
    order = sheet_order(collection.tree, typical)
    with page_folder(folder) as aside:
        pictures = [(collection.images, index) for index in order.tolist()]
        sheets = write_sheets(pictures, aside / SHEETS, largest=thumbnail, progress=progress)
        data = tree_data(collection, typical, margins, order, folder) | {"sheets": sheets}
        data |= {"names": dict(names or {}), "suggested": suggest_names(collection, typical)}
        write_page(aside, "tree", f"{collection.name} · tree", data)


def tree_data(collection: Collection, typical: Tensor, margins: Tensor, order: Tensor, folder: Path) -> dict[str, Any]:
    """The data of the page, with images in the order of their thumbnails."""
    tree, images = collection.tree, collection.images
    paths = collection.paths
    labels = []
    if images.labels is not None:
        for level, names in enumerate(images.label_names):
            labels.append({"names": list(names), "of": pack(images.labels[order, level], "i4")})
    return {
        "title": collection.name,
        "source": collection.data,
        "note": collection.tree_note,
        "origin": encoder_note(collection),
        "tree": collection.tree_id,
        "levels": list(tree.levels),
        "parents": [pack(parents, "i4") for parents in tree.parents],
        "leaves": pack(tree.leaves[order], "i4"),
        "typical": _pack_within(1, typical[order]),
        "margins": _pack_within(2, margins[order]),  # differences of cosines
        "rows": pack(collection.rows[order], "i4"),
        "labels": labels,
        "unreadable": [bad.path for bad in collection.unreadable],
        "covers": COVERS,
    } | file_data([paths[index] for index in order.tolist()], folder)


def encoder_note(collection: Collection) -> str:
    """Where the weights of a run's encoder come from; "" if the tree's note has it, or if it is unknown."""
    encoder = collection.encoder
    if encoder is None or encoder.run is None:
        return ""
    return f"Encoder: {encoder.provenance or 'trained from random weights, without labels'}"


def _pack_within(limit: float, values: Tensor) -> list[str]:
    """Values (n, L) from −limit to limit, packed level by level."""
    return [pack_fractions((level.clamp(-limit, limit) / limit + 1) / 2) for level in values.T]


def sheet_order(tree: PrototypeTree, typical: Tensor) -> Tensor:
    """(n,): the images in the order of their thumbnails, so that images shown together are in few sheets.

    First come those that represent the coarsest nodes, then those of the next level, and so on; last the rest. Within
    each part nodes are in tree order, and the images of a node from the most to the least typical.
    """
    path = tree.path(tree.leaves)  # (n, L), fine → coarse
    L = path.shape[1]
    part = np.full(len(path), L, dtype=np.int64)
    for level in range(L):  # the coarsest last, so that it overrides the others
        ranks = place_in_group(path[:, level], (-typical[:, level]).argsort(stable=True))
        part[(ranks < COVERS).numpy()] = L - 1 - level
    keys = [-typical[:, 0].numpy(), *(path[:, level].numpy() for level in range(L)), part]
    return torch.from_numpy(np.lexsort(keys))


def read_names(file: Path, tree: PrototypeTree | str) -> dict[str, str]:
    """Node names that the page exported as JSON; raises a ValueError if they are not of this tree, or tree id."""
    own = tree if isinstance(tree, str) else tree_id(tree)
    if not file.is_file():
        raise ValueError(f"{str(file)!r} is not found, but must be a file of node names")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        names = {str(node): str(name) for node, name in found["names"].items()}
        other = found["tree"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(file)!r} is not a JSON file of node names, as exported by the tree page") from error
    if other != own:
        raise ValueError(f"the names in {str(file)!r} are of the tree {other}, but must be of this one, {own}")
    return names
