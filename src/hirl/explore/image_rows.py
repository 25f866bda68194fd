"""A row per image of a collection, for tables that other programs read: its path through the tree, with confidence.

file           the image
row            its index in the data set, and its row in the output of `hirl embed`
level_0 …      the node at each level of the tree, fine → coarse, as level-number or by its name
confidence_0 … the margin of its path over the best path through another node of the level; empty if there is none
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hirl.explore.collection import Collection


def image_rows(
    collection: Collection, images: Sequence[int] | None = None, *, names: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The rows of these images, by default of all; `names` of nodes by level and number ("2-17")."""
    chosen, names, tree = list(range(len(collection)) if images is None else images), names or {}, collection.tree
    leaves = tree.leaves[chosen]
    nodes, margins = tree.path(leaves).tolist(), tree.margins(collection.z[0][chosen], leaves).tolist()
    rows: list[dict[str, Any]] = []
    for image, path, sure in zip(chosen, nodes, margins, strict=True):
        row: dict[str, Any] = {"file": collection.images.path(image), "row": int(collection.rows[image])}
        keys = [f"{level}-{node}" for level, node in enumerate(path)]
        row |= {f"level_{level}": names.get(key, key) for level, key in enumerate(keys)}
        row |= {f"confidence_{level}": round(of, 6) if math.isfinite(of) else None for level, of in enumerate(sure)}
        rows.append(row)
    return rows
