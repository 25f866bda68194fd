"""Swaps of leaves: they find groups that Lloyd's steps miss, and the sum of cosines rises with every one of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.rows import UnitRows
from hirl.hierarchy.swaps import MIN_ROWS, swap_leaves
from hirl.ranks import Ranks

ALONE, SEED = Ranks(None), (0, 1)


def groups(count: int, each: int, spread: float = 0.01) -> Tensor:
    """Rows around `count` orthogonal directions, one group after the other."""
    noise = torch.randn(count * each, 32, generator=torch.Generator().manual_seed(0))
    return F.normalize(torch.eye(count, 32).repeat_interleave(each, 0) + spread * noise, dim=1)


def cosines(rows: Tensor, leaves: Tensor, parents: Tensor) -> list[float]:
    """The sum of cosines to the mean direction of the leaf, and of its node, one row after the other."""
    found = []
    for cluster in (leaves, parents[leaves]):
        total = 0.0
        for one in cluster.unique():
            own = rows[cluster == one].double()
            total += float((own @ F.normalize(own.mean(0), dim=0)).sum())
        found.append(total)
    return found


def test_a_leaf_of_two_groups_gets_the_second_leaf_of_a_split_group() -> None:
    rows = groups(4, 10)
    leaves = torch.tensor([0] * 5 + [1] * 5 + [2] * 10 + [3] * 20)  # group 0 in two leaves, groups 2 and 3 in one
    swapped, parents = swap_leaves(UnitRows(rows), leaves, torch.tensor([0, 0, 1, 1]), ALONE, SEED)
    assert all(len(swapped[place : place + 10].unique()) == 1 for place in range(0, 40, 10))
    assert len(swapped.unique()) == 4
    free = int(swapped[20]) if int(swapped[20]) != 3 else int(swapped[30])
    assert free in (0, 1)
    assert parents[free] == parents[3] == 1
    assert parents[1 - free] == 0


@pytest.mark.parametrize("dim", [4, 32])
def test_leaves_gain_and_nodes_stay_as_they_are(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    rows = F.normalize(torch.randn(400, dim, generator=generator), dim=1)
    parents = torch.arange(40) % 5
    leaves = (rows @ rows[:40].T).argmax(1)
    swapped, moved = swap_leaves(UnitRows(rows), leaves, parents, ALONE, SEED)
    before, after = cosines(rows, leaves, parents), cosines(rows, swapped, moved)
    assert int((moved != parents).sum()) > 0
    assert after[0] > before[0]
    assert torch.equal(parents[leaves], moved[swapped])
    assert int(torch.bincount(swapped, minlength=40)[swapped[swapped != leaves]].min()) >= MIN_ROWS


def test_nothing_is_swapped_where_nothing_is_gained() -> None:
    rows = groups(4, 10, spread=0.0)
    for leaves in (torch.arange(4).repeat_interleave(10), torch.arange(8).repeat_interleave(5)):
        parents = torch.arange(int(leaves.max()) + 1) // 2
        swapped, same = swap_leaves(UnitRows(rows), leaves, parents, ALONE, SEED)
        assert torch.equal(swapped, leaves)
        assert torch.equal(same, parents)


def test_only_children_and_empty_leaves_are_left_alone() -> None:
    rows = groups(2, 10)
    leaves, parents = torch.tensor([0] * 10 + [1] * 10), torch.tensor([0, 1, 1])
    swapped, same = swap_leaves(UnitRows(rows), leaves, parents, ALONE, SEED)
    assert torch.equal(swapped, leaves)
    assert torch.equal(same, parents)


def test_only_leaves_of_few_rows_are_joined_if_asked() -> None:
    rows = groups(4, 10)
    leaves = torch.tensor([0] * 9 + [1] + [2] * 10 + [3] * 20)
    parents = torch.tensor([0, 0, 1, 1])
    swapped, moved = swap_leaves(UnitRows(rows), leaves, parents, ALONE, SEED, max_rows=1)
    assert moved.tolist() == [0, 1, 1, 1]
    assert len(swapped[:10].unique()) == 1
    same, _ = swap_leaves(UnitRows(rows), swapped, moved, ALONE, SEED, max_rows=1)
    assert same is swapped
