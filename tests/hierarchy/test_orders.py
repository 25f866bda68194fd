"""Trees built top-down, or bottom-up with weights, against slow loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import PrototypeTree, SemanticPaths, hierarchical_kmeans
from hirl.hierarchy.builder import HierarchicalKMeans

LEVELS = (24, 6, 2)


def nested(count: int = 600, dim: int = 12, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows around 12 centres, four around each of 3, and the number of the coarse centre of each row."""
    generator = torch.Generator().manual_seed(seed)
    coarse = F.normalize(torch.randn(3, dim, generator=generator), dim=1)
    fine = coarse.repeat_interleave(4, 0) + 0.4 * F.normalize(torch.randn(12, dim, generator=generator), dim=1)
    which = torch.randint(12, (count,), generator=generator)
    return fine[which] + 0.1 * torch.randn(count, dim, generator=generator), which // 4


def without_gaps() -> tuple[Tensor, Tensor, PrototypeTree]:
    """Rows without gaps between clusters, the same at unit length, and a tree that is not settled yet."""
    features = torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    init = hierarchical_kmeans(features, (8, 3), iterations=1, path_steps=0, seed=5)
    return features, F.normalize(features, dim=1), init


def nearest_paths(units: Tensor, fine: Tensor, coarse: Tensor, parents: list[int]) -> list[int]:
    leaves = range(len(fine))
    return [max(leaves, key=lambda leaf: float(row @ fine[leaf] + row @ coarse[parents[leaf]])) for row in units]


def mean_direction(rows: list[Tensor]) -> Tensor:
    return F.normalize(torch.stack(rows).sum(0), dim=0)


def test_levels_top_down_equal_a_slow_loop() -> None:
    """Steps per level from given prototypes, in which rows stay in their node; at the end the nearest path counts."""
    features, units, init = without_gaps()
    coarse, fine = init.prototypes[1].clone(), init.prototypes[0].clone()
    for _ in range(2):
        node = [int((coarse @ row).argmax()) for row in units]
        coarse = torch.stack([mean_direction([units[i] for i, n in enumerate(node) if n == c]) for c in range(3)])
    node = [int((coarse @ row).argmax()) for row in units]
    parents = init.parents[0].tolist()
    for _ in range(2):
        leaf = []
        for row, parent in zip(units, node, strict=True):
            own = [child for child in range(8) if parents[child] == parent]
            leaf.append(max(own, key=lambda child: float(fine[child] @ row)))
        fine = torch.stack([mean_direction([units[i] for i, n in enumerate(leaf) if n == c]) for c in range(8)])
    tree = hierarchical_kmeans(features, (8, 3), init=init, iterations=2, tolerance=0, path_steps=0)
    assert tree.by_path
    assert tree.parents[0].tolist() == parents
    assert tree.leaves.tolist() == nearest_paths(units, fine, coarse, parents)
    torch.testing.assert_close(tree.prototypes[0], fine)
    torch.testing.assert_close(tree.prototypes[1], coarse)


def test_steps_over_paths_equal_a_slow_loop() -> None:
    """From an earlier tree: each row goes to the nearest path, and each node to the mean direction of its rows."""
    features, units, init = without_gaps()
    coarse, fine, parents = init.prototypes[1].clone(), init.prototypes[0].clone(), init.parents[0].tolist()
    for _ in range(2):
        leaf = nearest_paths(units, fine, coarse, parents)
        fine = torch.stack([mean_direction([units[i] for i, n in enumerate(leaf) if n == c]) for c in range(8)])
        below = [[units[i] for i, n in enumerate(leaf) if parents[n] == c] for c in range(3)]
        coarse = torch.stack([mean_direction(rows) for rows in below])
    tree = hierarchical_kmeans(features, (8, 3), init=init, path_steps=2)
    assert tree.by_path
    assert tree.parents[0].tolist() == parents
    assert tree.leaves.tolist() == nearest_paths(units, fine, coarse, parents)
    torch.testing.assert_close(tree.prototypes[0], fine)
    torch.testing.assert_close(tree.prototypes[1], coarse)
    assert not torch.equal(tree.leaves, (units @ tree.prototypes[0].T).argmax(1))


@pytest.mark.parametrize(("astray", "least"), [(1, 0.7), (8, 0.7), (20, 0.5)])
def test_an_earlier_tree_that_no_longer_fits_is_clustered_again_from_its_prototypes(astray: int, least: float) -> None:
    """One leaf of 24 without images is filled, for 8 or 20 all are clustered again; the others keep their numbers and
    most of their images, of which by chance one in 24 would keep its leaf. New leaves take images from the 4 that are
    left of 20 astray."""
    features, _ = nested()
    earlier = hierarchical_kmeans(features, (24, 6), seed=1)
    fine = earlier.prototypes[0].clone()
    fine[:astray] = -F.normalize(features.sum(0), dim=0)  # nearest to no row
    tree = hierarchical_kmeans(
        features, (24, 6), seed=2, init=replace(earlier, prototypes=(fine, earlier.prototypes[1]))
    )
    assert int(tree.sizes(0).min()) >= 1
    kept = earlier.leaves >= astray
    assert float((tree.leaves == earlier.leaves)[kept].float().mean()) > least
    coarse = tree.image_paths[:, 1] == earlier.image_paths[:, 1]
    assert float(coarse.float().mean()) > 0.9


def test_weighted_equals_a_slow_loop_over_images() -> None:
    """A prototype counts as many times as it has images."""
    features, _ = nested(200)
    init = hierarchical_kmeans(features, (20, 3), seed=5)
    steps: dict[str, Any] = {"order": "bottom-up", "init": init, "iterations": 3, "tolerance": 0}
    tree = hierarchical_kmeans(features, (20, 3), weighted=True, **steps)
    rows, weights, coarse = tree.prototypes[0], tree.sizes(0), init.prototypes[1].clone()
    for _ in range(3):
        node = [int((coarse @ row).argmax()) for row in rows]
        repeated = [[rows[i]] * int(weights[i]) for i in range(20)]
        members = [[row for i, n in enumerate(node) if n == c for row in repeated[i]] for c in range(3)]
        coarse = torch.stack([mean_direction(own) for own in members])
    torch.testing.assert_close(tree.prototypes[1], coarse)
    assert torch.equal(tree.parents[0], (rows @ coarse.T).argmax(1))
    plain = hierarchical_kmeans(features, (20, 3), **steps)
    assert torch.equal(plain.prototypes[0], tree.prototypes[0])
    assert not torch.equal(plain.prototypes[1], tree.prototypes[1])


@pytest.mark.parametrize(
    "options", [{"order": "top-down"}, {"order": "bottom-up", "weighted": True}], ids=["top-down", "weighted"]
)
def test_what_holds_for_every_tree(options: dict[str, Any]) -> None:
    features, coarse = nested()
    tree = hierarchical_kmeans(features, LEVELS, seed=1, **options)
    assert tree.levels == LEVELS
    assert torch.equal(tree.assign(features), tree.leaves)
    for level, parents in enumerate(tree.parents):
        assert len(parents.unique()) == LEVELS[level + 1]  # every node has a child
    same = hierarchical_kmeans(features, LEVELS, seed=1, **options)
    assert all(torch.equal(one, other) for one, other in zip(tree.prototypes, same.prototypes, strict=True))
    places = torch.randperm(len(features), generator=torch.Generator().manual_seed(2))
    moved = hierarchical_kmeans(features[places], LEVELS, seed=1, index=places, **options)
    assert torch.equal(moved.leaves, tree.leaves[places])
    best = hierarchical_kmeans(features, (12, 3), seed=1, restarts=10, **options)
    found = torch.stack([(coarse[best.image_paths[:, 1] == node].bincount().max()) for node in range(3)])
    assert int(found.sum()) == len(features)  # the true coarse groups


def test_a_top_down_tree_starts_from_the_last_one_and_survives_a_node_without_children() -> None:
    features, _ = nested()
    first = hierarchical_kmeans(features, (24, 6), order="top-down", seed=1)
    again = hierarchical_kmeans(features, (24, 6), order="top-down", seed=2, init=first)
    assert float((again.leaves == first.leaves).float().mean()) > 0.9
    childless = PrototypeTree(first.prototypes, (torch.zeros(24, dtype=torch.int64),), first.leaves)
    tree = hierarchical_kmeans(features, (24, 6), order="top-down", seed=2, init=childless)
    assert len(tree.parents[0].unique()) == 6


def test_how_a_tree_assigns_is_kept_with_it(tmp_path: Path) -> None:
    features, _ = nested()
    tree = hierarchical_kmeans(features, LEVELS, order="top-down", iterations=2)
    tree.save(tmp_path / "tree.safetensors")
    for other in (PrototypeTree.load(tmp_path / "tree.safetensors"), PrototypeTree.from_tensors(tree.tensors())):
        assert other.by_path
        assert torch.equal(other.assign(features), tree.leaves)
    paths = SemanticPaths(12, LEVELS, builder=HierarchicalKMeans(order="top-down"))
    paths.refresh(features)
    restored = SemanticPaths(12, LEVELS)
    restored.load_state_dict(paths.state_dict())
    assert restored.tree is not None
    assert restored.tree.by_path
    assert torch.equal(restored.find_leaves(target=features), paths.find_leaves(torch.arange(len(features))))


def test_as_many_leaves_as_rows_and_repeated_rows() -> None:
    features, _ = nested(40)
    tree = hierarchical_kmeans(features, (40, 5), order="top-down")
    assert torch.equal(tree.leaves.sort().values, torch.arange(40))
    with pytest.raises(ValueError, match=r"hold only .* different directions"):
        hierarchical_kmeans(features.repeat(2, 1), (60, 5), order="top-down")


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="weighted is for order bottom-up"):
        HierarchicalKMeans(weighted=True)
    with pytest.raises(ValueError, match="path_steps is -1, but must be at least 0"):
        HierarchicalKMeans(path_steps=-1)
    with pytest.raises(ValueError, match="order is 'sideways', but must be one of bottom-up, top-down, ward"):
        hierarchical_kmeans(nested()[0], LEVELS, order="sideways")
