"""A static figure of a subtree for papers: nodes as rows of their most typical images, the coarsest at the left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.explore.collection import Collection
from hirl.explore.figure_style import FAINT, INK, METADATA, font_context
from hirl.explore.thumbnails import thumbnail, thumbnail_side
from hirl.explore.tree_text import largest_first
from hirl.files import atomic_write, check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = (".png", ".svg", ".pdf")
SIDE, GAP, COLUMN_GAP, TEXT = 0.42, 0.05, 0.75, 0.2  # inches: an image, between images, between levels, a line of text
ROW_GAP = 0.12
LINE = "#b9b7b0"
GENERATIONS = 2  # below the root of the figure
LARGEST = 192  # pixels of an image


@dataclass
class _Placed:
    """A node of the figure, with the position of its row of images."""

    level: int
    node: int
    images: list[int]
    children: list[_Placed]
    size: int
    x: float = 0.0
    y: float = 0.0  # the row's middle, from the top downwards


def check_figure(file: Path) -> None:
    """Raise a ValueError if the file's name does not end in a figure format; to be called before the work."""
    if file.suffix.lower() not in KINDS:
        raise ValueError(f"the figure's file is {str(file)!r}, but must end in one of {', '.join(KINDS)}")
    check_writable(file)


def parse_node(text: str, levels: tuple[int, ...]) -> tuple[int, int]:
    """Level and number of a node given as "2-17", if the tree has it."""
    level, _, node = text.partition("-")
    if not (level.isdecimal() and node.isdecimal()):
        raise ValueError(f"node is {text!r}, but must be a level and a number, such as 2-17")
    if int(level) >= len(levels) or int(node) >= levels[int(level)]:
        sizes = ", ".join(f"{place}-0 to {place}-{count - 1}" for place, count in enumerate(levels))
        raise ValueError(f"node is {text}, but must be one of {sizes}")
    return int(level), int(node)


def write_tree_figure(
    collection: Collection,
    file: Path,
    *,
    node: str | None = None,
    children: int = 4,
    columns: int = 6,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draw a node, its largest `children` and theirs, each with `columns` typical images, to a .png, .svg or .pdf.

    Without a `node` the figure shows the largest of the coarsest nodes, and their children.
    """
    check_figure(file)
    if children < 1 or columns < 1:
        raise ValueError(f"children and columns are {children} and {columns}, but must both be at least 1")
    typical = collection.typicality()
    top = len(collection.tree.levels) - 1
    if node is not None:
        roots = [parse_node(node, collection.tree.levels)]
        if not len(collection.tree.images(*roots[0])):
            raise ValueError(f"node {node} has no images, but must have some to draw")
    else:
        every_node = torch.arange(collection.tree.levels[top])
        roots = [(top, one) for one in largest_first(collection.tree, top, every_node)[:children]]
    generations = GENERATIONS if node is not None else GENERATIONS - 1
    placed = [_collect(collection, typical, *root, generations, children, columns) for root in roots]
    depth = max(map(_depth, placed))
    height = 0.0
    for root in placed:
        height = _place(root, 0, height, columns)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    margin = 0.12
    width = depth * _width(columns) + (depth - 1) * COLUMN_GAP
    figure = Figure(figsize=(width + 2 * margin, height + 2 * margin))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-margin, width + margin)
    axes.set_ylim(height + margin, -margin)
    axes.axis("off")
    every = [(collection.images, index) for root in placed for index in _images(root)]
    side = thumbnail_side(every, largest=LARGEST)
    with font_context(), atomic_write(file) as aside, aside.open("wb") as opened:
        for root in placed:
            _draw_node(axes, collection, root, side, columns, names or {})
        kind = file.suffix.lower()
        figure.savefig(opened, format=kind[1:], dpi=300, metadata=METADATA[kind])


def _collect(
    collection: Collection, typical: Tensor, level: int, node: int, generations: int, children: int, columns: int
) -> _Placed:
    tree = collection.tree
    images = tree.images(level, node)
    best = images[typical[images, level].argsort(descending=True, stable=True)][:columns].tolist()
    below: list[_Placed] = []
    if level > 0 and generations > 0:
        below = [
            _collect(collection, typical, level - 1, child, generations - 1, children, columns)
            for child in largest_first(tree, level - 1, tree.children(level, node))[:children]
        ]
    return _Placed(level, node, best, below, len(images))


def _depth(root: _Placed) -> int:
    return 1 + max(map(_depth, root.children), default=0)


def _width(columns: int) -> float:
    return columns * (SIDE + GAP) - GAP


def _place(root: _Placed, column: int, top: float, columns: int) -> float:
    """Set the positions of a node and all below it; return the top of the next one."""
    root.x = column * (_width(columns) + COLUMN_GAP)
    if not root.children:
        root.y = top + TEXT + SIDE / 2
        return top + TEXT + SIDE + ROW_GAP
    for child in root.children:
        top = _place(child, column + 1, top, columns)
    root.y = (root.children[0].y + root.children[-1].y) / 2
    return top + ROW_GAP


def _images(root: _Placed) -> list[int]:
    return [*root.images, *(index for child in root.children for index in _images(child))]


def _draw_node(
    axes: Axes, collection: Collection, node: _Placed, side: int, columns: int, names: Mapping[str, str]
) -> None:
    import numpy as np

    for place, index in enumerate(node.images):
        left = node.x + place * (SIDE + GAP)
        extent = (left, left + SIDE, node.y + SIDE / 2, node.y - SIDE / 2)
        axes.imshow(np.asarray(thumbnail(collection.images, index, side)), extent=extent, aspect="auto", zorder=2)
    key = f"{node.level}-{node.node}"
    name = one_line(names[key]) if key in names else f"node {key}"
    baseline = node.y - SIDE / 2 - 0.05
    # File and node names are text: matplotlib would read dollar signs as mathematics.
    axes.text(node.x, baseline, name, fontsize=7.5, color=INK, weight="bold", parse_math=False)
    right = node.x + _width(columns)
    text = f"{node.size:,} images"
    axes.text(right, baseline, text, fontsize=6.5, color=FAINT, ha="right", parse_math=False)
    if not node.children:
        return
    begin, end = node.x + len(node.images) * (SIDE + GAP), right + COLUMN_GAP - 0.1
    middle = right + COLUMN_GAP / 2
    for child in node.children:
        axes.plot([begin, middle, middle, end], [node.y, node.y, child.y, child.y], color=LINE, linewidth=0.8, zorder=1)
        _draw_node(axes, collection, child, side, columns, names)
