"""Figures of a run's trees, checked by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hirl import PrototypeTree
from hirl.train.health import TreeFigures


def tree_of(*leaves: int) -> PrototypeTree:
    nodes = F.normalize(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    return PrototypeTree((nodes, nodes[:2]), (torch.tensor([0, 0, 1, 1]),), torch.tensor(leaves))


def test_moved_leaves_and_purity() -> None:
    figures = TreeFigures(torch.tensor([0, 0, 1, 1, 1]))
    first = figures.measure(tree_of(0, 0, 1, 2, -1))  # the last image could not be read
    assert "moved_leaves" not in first  # there is nothing to compare with yet
    assert first["purity_0"] == 1
    assert first["purity_1"] == 3 / 4
    second = figures.measure(tree_of(0, 1, 1, 2, -1))
    assert second["moved_leaves"] == 1 / 4
    assert second["purity_0"] == 3 / 4


def test_without_labels_there_is_no_purity() -> None:
    figures = TreeFigures(None)
    assert figures.measure(tree_of(0, 1, 2)) == {}
    assert figures.measure(tree_of(0, 1, 2)) == {"moved_leaves": 0}
    assert figures.measure(tree_of(0, 1, 2), anew=True) == {}  # leaves have new numbers
