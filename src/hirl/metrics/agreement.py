"""Agreement of clusters with classes, and of a tree of images with the tree of their labels.

All are pure functions of counts of nodes × classes.

A tree is given as `paths` (N, L): the node of every image at each level, fine → coarse, each node within one node of
the next level; labels likewise as (N, levels). Above the last level is a root that holds all images. Pairs of images
are never listed but counted from the sizes of nodes and classes, so that time grows like sorting N numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Cells(NamedTuple):
    """The non-empty cells of a table of nodes × classes, by node and then by class."""

    node: Tensor  # (cells,)
    label: Tensor  # (cells,)
    images: Tensor  # (cells,) counts


def cells(nodes: Tensor, labels: Tensor) -> Cells:
    """The number of images of each class in each node; nodes and labels are (N,)."""
    classes = int(labels.max()) + 1
    codes, images = torch.unique(nodes * classes + labels, return_counts=True)
    return Cells(codes // classes, codes % classes, images)


def is_nested(levels: Tensor) -> bool:
    """Whether each group of a level (N, levels) lies within one group of the next."""
    columns = list(levels.T)
    return all(len(cells(fine, coarse).images) == len(fine.unique()) for fine, coarse in pairwise(columns))


def parents(labels: Tensor, fine: int, coarse: int) -> Tensor | None:
    """(classes,): the class of level `coarse` that contains each class of level `fine`; None if one lies in several.

    `labels` is (N, levels).
    """
    children, around = labels[:, fine], labels[:, coarse]
    parent = _parents(children, around)
    return parent if bool((parent[children] == around).all()) else None


def majority_share(labels: Tensor) -> float:
    """The share of the largest class among `labels` (N,): the accuracy of a guess that is the same for every image."""
    return float(labels.bincount().max()) / len(labels)


def purity(nodes: Tensor, labels: Tensor) -> float:
    """The share of images that are of the most frequent class of their node; nodes and labels are (N,)."""
    table = cells(nodes, labels)
    most = torch.zeros(int(nodes.max()) + 1, dtype=torch.int64).scatter_reduce_(0, table.node, table.images, "amax")
    return int(most.sum()) / len(nodes)


def clustering_accuracy(clusters: Tensor, labels: Tensor) -> float:
    """The share of images classified correctly if each cluster stands for one class, by the best matching.

    clusters and labels are (N,).
    """
    from scipy.optimize import linear_sum_assignment

    found = cells(clusters, labels)
    table = torch.zeros(int(clusters.max()) + 1, int(labels.max()) + 1, dtype=torch.int64)
    table[found.node, found.label] = found.images
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return int(table[rows, columns].sum()) / len(labels)


def mutual_information(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """NMI and AMI, both 1 for equal partitions. AMI is 0 by chance whatever the number of clusters."""
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    if len(cells(clusters, labels).images) == len(clusters.unique()) == len(labels.unique()):
        return {"NMI": 1.0, "AMI": 1.0}  # equal up to names; logarithms would miss 1 by the last digit
    both = labels.cpu().numpy(), clusters.cpu().numpy()
    return {"NMI": float(normalized_mutual_info_score(*both)), "AMI": float(adjusted_mutual_info_score(*both))}


def dendrogram_purity(paths: Tensor, labels: Tensor) -> float:
    """Over all pairs of images of one class (N,): the mean share of that class below their lowest common ancestor.

    The measure of Heller and Ghahramani, for a tree whose nodes may have any number of children and images.
    """
    rooted = _rooted(paths)
    found, met = 0.0, 0
    for level in range(rooted.shape[1]):
        nodes = rooted[:, level]
        table = cells(nodes, labels)
        share = table.images.double() / nodes.bincount()[table.node]
        meeting = pairs(table.images)  # here or below …
        if level:  # … less those that have met below
            finer = cells(rooted[:, level - 1], labels)
            parents = _parents(rooted[:, level - 1], nodes)[finer.node]
            width = int(labels.max()) + 1
            place = torch.searchsorted(table.node * width + table.label, parents * width + finer.label)
            meeting = meeting.index_add(0, place, -pairs(finer.images))
        found += float((meeting * share).sum())
        met += int(meeting.sum())
    if not met:
        raise ValueError("no class has two images, so there is no pair whose common ancestor could be compared")
    return found / met


def height_table(paths: Tensor, labels: Tensor) -> list[list[int]]:
    """The number of pairs of images that meet at each height of the tree (rows) and of the label tree (columns).

    Height 0: in the same finest node; L: only in the root.
    """
    tree, classes = _rooted(paths), _rooted(labels)
    together = [[_together(nodes, of) for of in classes.T] for nodes in tree.T]  # at that height or below
    return [
        [
            together[a][b]
            - (together[a - 1][b] if a else 0)
            - (together[a][b - 1] if b else 0)
            + (together[a - 1][b - 1] if a and b else 0)
            for b in range(classes.shape[1])
        ]
        for a in range(tree.shape[1])
    ]


def rank_correlation(table: Sequence[Sequence[int]]) -> float:
    """Kendall's tau-b of two ranks from the table of their counts; 0 if one of them is constant.

    In integers up to the last division: pairs of pairs of images are more than a float can count.
    """
    same_order, other_order = 0, 0
    for a, row in enumerate(table):
        for b, count in enumerate(row):
            later = table[a + 1 :]
            same_order += count * sum(sum(further[b + 1 :]) for further in later)
            other_order += count * sum(sum(further[:b]) for further in later)
    rows, columns = [sum(row) for row in table], [sum(column) for column in zip(*table, strict=True)]
    total = sum(rows)
    untied = [total * (total - 1) // 2 - sum(n * (n - 1) // 2 for n in counts) for counts in (rows, columns)]
    if not all(untied):
        return 0.0
    return (same_order - other_order) / untied[0] * math.sqrt(untied[0] / untied[1])


def pairs(count: Tensor) -> Tensor:
    """The number of pairs among `count` images."""
    return count * (count - 1) // 2


def _together(nodes: Tensor, labels: Tensor) -> int:
    return int(pairs(cells(nodes, labels).images).sum())


def _rooted(levels: Tensor) -> Tensor:
    return torch.cat((levels, torch.zeros_like(levels[:, :1])), dim=1)


def _parents(nodes: Tensor, above: Tensor) -> Tensor:
    parents = torch.zeros(int(nodes.max()) + 1, dtype=torch.int64)
    parents[nodes] = above
    return parents
