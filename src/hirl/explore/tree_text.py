"""Prints a tree of prototypes and a table of its levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    top = len(tree.levels) - 1
    drawn = Tree(f"[bold]{escape(one_line(title))}")
    for node in tree.sizes(top).argsort(descending=True, stable=True).tolist():
        if len(tree.images(top, node)):
            _draw_below(drawn, tree, top, node, labels, classes, titles)
    return drawn


def _draw_below(
    branch: Tree,
    tree: PrototypeTree,
    level: int,
    node: int,
    labels: Tensor | None,
    classes: Sequence[str],
    titles: Mapping[str, str],
) -> None:
    images = tree.images(level, node)
    key = f"{level}-{node}"
    text = f"{titles[key]} ({key}), " if key in titles else f"[dim]{key}[/dim]  "
    text += f"{len(images):,} images"
    if labels is not None:
        counts = labels[images].bincount(minlength=len(classes))
        most = counts.argsort(descending=True, stable=True)[:SHOWN_CLASSES].tolist()
        shares = [
            f"[bold]{escape(one_line(classes[label]))}[/bold] {counts[label] / len(images):.0%}"
            for label in most
            if counts[label]
        ]
        text += ": " + ", ".join(shares)
    below = branch.add(text)
    if level < 1:
        return
    children = tree.children(level, node)
    sizes = tree.sizes(level - 1)[children]
    children = children[sizes.argsort(descending=True, stable=True)][: int((sizes > 0).sum())]
    if level == 1:
        below.label = f"{below.label}, in {len(children)} {'leaf' if len(children) == 1 else 'leaves'}"
        return
    for child in children[:SHOWN_CHILDREN].tolist():
        _draw_below(below, tree, level - 1, child, labels, classes, titles)
    if len(children) > SHOWN_CHILDREN:
        below.add(f"… and {len(children) - SHOWN_CHILDREN} smaller")


def print_levels(tree: PrototypeTree) -> None:
    """Print one row per level, fine to coarse: nodes, images per node and children per node."""
    table = Table(
        title=f"{tree.count:,} images, {len(tree.levels)} level{'s' * (len(tree.levels) > 1)}", title_justify="left"
    )
    table.add_column("level", justify="right")
    for heading in ("nodes", "fewest images", "median", "most", "children per node"):
        table.add_column(heading, justify="right")
    for level, nodes in enumerate(tree.levels):
        sizes = tree.sizes(level)
        below = tree.levels[level - 1] if level else tree.count
        row = [str(level), f"{nodes:,}", f"{int(sizes.min()):,}", f"{int(sizes.median()):,}", f"{int(sizes.max()):,}"]
        table.add_row(*row, f"{below / nodes:.1f}")
    Console().print(table)
