"""The demo: a tree over scikit-learn's handwritten digits, printed with how well it matches the digits."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.tree import Tree
from torch import Tensor

from hirl.explore.tree_text import level_table
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.agreement import purity
from hirl.metrics.clustering import mutual_information
from hirl.terminal.progress import tree_progress
from hirl.terminal.tables import per_cent

LEVELS = (160, 40, 10)
RESTARTS = 5
SHOWN_CHILDREN = 4


def digits_demo(*, seed: int = 0) -> PrototypeTree:
    """Build and print the tree. The features are the pixels themselves: nothing is learnt."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    features = torch.from_numpy(digits.data).float()
    labels = torch.from_numpy(digits.target)
    print(f"{len(features):,} handwritten digits of 8 × 8 pixels, in a tree with levels of {LEVELS} nodes\n")
    builder = HierarchicalKMeans(restarts=RESTARTS)
    with tree_progress(len(features), LEVELS, builder.max_steps) as progress:
        tree = builder(features, LEVELS, seed=seed, progress=progress)

    Console().print(_drawn(tree, labels))
    nodes = [tree.paths[tree.leaves, level] for level in range(len(LEVELS))]
    level_table(
        tree,
        purity=[per_cent(purity(of, labels), digits=1) for of in nodes],
        NMI=[per_cent(mutual_information(of, labels)["NMI"], digits=1) for of in nodes],
    )
    print(
        "purity: share of images that show their node's most frequent digit (one node for all would have "
        f"{per_cent(purity(torch.zeros_like(labels), labels), digits=1)});\n"
        "NMI: normalised mutual information with the digits, 100% if a level and the digits are the same partition."
    )
    return tree


def _drawn(tree: PrototypeTree, labels: Tensor) -> Tree:
    """Draw the tree from its roots down, largest nodes first, each with its images and their most frequent digits."""
    top = len(tree.levels) - 1
    drawn = Tree("[bold]all digits")
    for node in tree.sizes(top).argsort(descending=True).tolist():
        _draw_below(drawn, tree, labels, top, node)
    return drawn


def _draw_below(branch: Tree, tree: PrototypeTree, labels: Tensor, level: int, node: int) -> None:
    images = tree.images(level, node)
    counts = labels[images].bincount()
    most = counts.argsort(descending=True)[:3].tolist()
    share = ", ".join(f"[bold]{digit}[/bold] {counts[digit] / len(images):.0%}" for digit in most if counts[digit])
    below = branch.add(f"{len(images)} images: {share}")
    if level < 1:
        return
    children = tree.children(level, node)
    children = children[tree.sizes(level - 1)[children].argsort(descending=True)]
    if level == 1:  # leaves are too many to print
        below.label = f"{below.label}, in {len(children)} leaves"
        return
    for child in children[:SHOWN_CHILDREN].tolist():
        _draw_below(below, tree, labels, level - 1, child)
    if len(children) > SHOWN_CHILDREN:
        below.add(f"… and {len(children) - SHOWN_CHILDREN} smaller")
