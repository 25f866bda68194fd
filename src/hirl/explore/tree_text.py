"""Prints a tree of prototypes and a table of its levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree
from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.hierarchy.tree import PrototypeTree

SHOWN_CHILDREN = 4
SHOWN_CLASSES = 3


def draw_tree(
    tree: PrototypeTree,
    title: str,
    *,
    labels: Tensor | None = None,
    classes: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    suggested: Mapping[str, str] | None = None,
) -> Tree:
    """The tree from its coarsest nodes down, largest first, each with its number of images and most frequent classes.

    `labels` (N,) are the images' classes, `classes` their names; `names` of nodes ("2-17": "cats") are in bold, and
    `suggested` names, for nodes without one, in italics with a question mark. Leaves, too many to print, are counted.
    """
    titles = {node: f"[italic]{escape(one_line(name))}?[/italic]" for node, name in (suggested or {}).items()}
    titles |= {node: f"[bold]{escape(one_line(name))}[/bold]" for node, name in (names or {}).items()}

    def draw(branch: Tree, level: int, node: int) -> None:
        images = tree.images(level, node)
        key = f"{level}-{node}"
        text = f"{titles[key]} ({key}), " if key in titles else f"[dim]{key}[/dim]  "
        text += f"{len(images):,} images"
        if labels is not None:
            counts = labels[images].bincount(minlength=len(classes))
            most = counts.argsort(descending=True, stable=True)[:SHOWN_CLASSES].tolist()
            text += ": " + ", ".join(
                f"[bold]{escape(one_line(classes[label]))}[/bold] {counts[label] / len(images):.0%}"
                for label in most
                if counts[label]
            )
        below = branch.add(text)
        if level < 1:
            return
        children = largest_first(tree, level - 1, tree.children(level, node))
        if level == 1:
            below.label = f"{below.label}, in {len(children)} {'leaf' if len(children) == 1 else 'leaves'}"
            return
        for child in children[:SHOWN_CHILDREN]:
            draw(below, level - 1, child)
        if len(children) > SHOWN_CHILDREN:
            below.add(f"… and {len(children) - SHOWN_CHILDREN} smaller")

    top = len(tree.levels) - 1
    drawn = Tree(f"[bold]{escape(one_line(title))}")
    for node in largest_first(tree, top, torch.arange(tree.levels[top])):
        draw(drawn, top, node)
    return drawn


def largest_first(tree: PrototypeTree, level: int, nodes: Tensor) -> list[int]:
    """Those of the nodes of a level that have images, from the largest on."""
    sizes = tree.sizes(level)[nodes]
    return nodes[sizes.argsort(descending=True, stable=True)][: int((sizes > 0).sum())].tolist()


def print_levels(tree: PrototypeTree) -> None:
    """Print one row per level, fine to coarse: nodes, images per node and children per node."""
    table = Table(
        title=f"{tree.count:,} images, {len(tree.levels)} level{'s' * (len(tree.levels) > 1)}", title_justify="left"
    )
    for heading in ("level", "nodes", "fewest images", "median", "most", "children per node"):
        table.add_column(heading, justify="right")
    for level, nodes in enumerate(tree.levels):
        sizes = tree.sizes(level)
        below = tree.levels[level - 1] if level else tree.count
        row = [str(level), f"{nodes:,}", f"{int(sizes.min()):,}", f"{int(sizes.median()):,}", f"{int(sizes.max()):,}"]
        table.add_row(*row, f"{below / nodes:.1f}")
    Console().print(table)
