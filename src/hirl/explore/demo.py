"""The demo: a tree over scikit-learn's handwritten digits, printed with how well it matches the digits."""

from __future__ import annotations

import torch
from rich.console import Console

from hirl.explore.tree_text import drawn_tree, level_table
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.agreement import purity
from hirl.metrics.clustering import mutual_information
from hirl.terminal.progress import tree_progress
from hirl.terminal.tables import per_cent

LEVELS = (160, 40, 10)
RESTARTS = 5


def digits_demo(*, seed: int = 0) -> PrototypeTree:
    """Build and print the tree. The features are the pixels themselves: nothing is learnt."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    features = torch.from_numpy(digits.data).float()
    labels = torch.from_numpy(digits.target)
    print(f"{len(features):,} handwritten digits of 8 × 8 pixels, in a tree with levels of {LEVELS} nodes\n")
    builder = HierarchicalKMeans(restarts=RESTARTS)
    with tree_progress(builder.rows_per_step(len(features), LEVELS), LEVELS, builder.max_steps) as progress:
        tree = builder(features, LEVELS, seed=seed, progress=progress)

    Console().print(drawn_tree(tree, "all digits", labels=labels, classes=[str(digit) for digit in range(10)]))
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
