"""HTML for notebooks: a table of levels and expandable nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hirl.hierarchy.tree import PrototypeTree

SHOWN = 12  # children per node, the largest first


def tree_html(tree: PrototypeTree) -> str:
    """Return HTML without scripts or styles; all its variable text is numbers, so nothing is escaped."""
    rows = [
        f"<tr><td>{level}</td><td>{nodes:,}</td><td>{int(sizes.median()):,}</td><td>{int(sizes.max()):,}</td></tr>"
        for level, (nodes, sizes) in enumerate((nodes, tree.sizes(level)) for level, nodes in enumerate(tree.levels))
    ]
    head = "<tr><th>level</th><th>nodes</th><th>images per node, median</th><th>largest</th></tr>"
    top = len(tree.levels) - 1
    roots = tree.sizes(top).argsort(descending=True, stable=True).tolist()
    return (
        f"<p><b>PrototypeTree</b> of {tree.count:,} images, {tree.dim} dimensions</p>"
        f"<table>{head}{''.join(rows)}</table>{_nodes(tree, top, roots)}"
    )


def _nodes(tree: PrototypeTree, level: int, nodes: list[int]) -> str:
    """Return nodes of one level as a list; those of the two coarsest levels expand to their children."""
    sizes = tree.sizes(level)
    items = []
    for node in nodes[:SHOWN]:
        text = f"{level}-{node}: {int(sizes[node]):,} images"
        if level and level > len(tree.levels) - 3:
            children = tree.children(level, node)
            order = tree.sizes(level - 1)[children].argsort(descending=True, stable=True)
            below = _nodes(tree, level - 1, children[order].tolist())
            items.append(f"<li><details><summary>{text}, {len(children):,} children</summary>{below}</details></li>")
        else:
            items.append(f"<li>{text}</li>")
    if len(nodes) > SHOWN:
        items.append(f"<li>and {len(nodes) - SHOWN:,} more</li>")
    return f"<ul>{''.join(items)}</ul>"
