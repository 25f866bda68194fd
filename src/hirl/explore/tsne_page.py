"""The map page: a zoomable map that shows the image under the pointer; two maps side by side move together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hirl.data.own_folders import SHEETS
from hirl.explore.collection import Collection
from hirl.explore.page import file_data, pack, pack_fractions, write_page
from hirl.explore.thumbnails import write_sheets
from hirl.explore.tsne import Colouring
from hirl.terminal.progress import Progress, no_progress


def write_map_page(
    aside: Path,
    folder: Path,
    collection: Collection,
    points: Tensor,
    panels: Sequence[tuple[str, np.ndarray]],
    colourings: Sequence[Colouring],
    *,
    algorithm: str,
    progress: Progress = no_progress,
) -> None:
    """Write the page and its thumbnails to `aside`, which will become `folder`."""
    order = torch.from_numpy(spatial_order(panels[0][1]))
    pictures = [(collection.images, index) for index in points[order].tolist()]
    sheets = write_sheets(pictures, aside / SHEETS, progress=progress)
    data = {
        "title": collection.name,
        "algorithm": algorithm,
        "panels": [{"title": title, "places": pack_fractions(places[order.numpy()])} for title, places in panels],
        "colourings": [
            {"name": one.name, "groups": list(one.groups), "of": pack(one.of[order], "i4")} for one in colourings
        ],
        "rows": pack(collection.rows[points[order]], "i4"),
        "sheets": sheets,
    } | file_data([images.path(index) for images, index in pictures], folder)
    write_page(aside, "map", f"{collection.name} · {algorithm}", data)


def spatial_order(places: np.ndarray) -> np.ndarray:
    """(n,): the points in Z-order, which keeps neighbours together, so that a view loads few sheets."""
    cells = (places * 1023).astype(np.int64)
    code = np.zeros(len(places), dtype=np.int64)
    for bit in range(10):
        for axis in range(2):
            code |= (cells[:, axis] >> bit & 1) << (2 * bit + axis)
    return np.argsort(code, kind="stable")
