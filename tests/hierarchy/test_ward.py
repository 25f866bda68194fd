"""Ward linkage against scipy's and a slow loop, and trees that start from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hirl import PrototypeTree, hierarchical_kmeans
from hirl.hierarchy.builder import POOLED_FEATURES
from hirl.hierarchy.level_search import adjusted_rand
from hirl.hierarchy.linked_parts import Parts
from hirl.hierarchy.ward import ward_merges

from .test_sizes import FEATURES, LEVELS, N, distance, heavy_tail, nested_classes, single


def partition(clusters: Tensor) -> set[tuple[int, ...]]:
    return {tuple((clusters == cluster).nonzero().flatten().tolist()) for cluster in clusters.unique()}


def slow_cut(means: Tensor, weights: list[float], size: int) -> set[tuple[int, ...]]:
    """One pair after the other: the one whose union has the least more squared distance to its mean."""
    clusters: list[tuple[float, Tensor, tuple[int, ...]]]
    clusters = [(float(weight), row, (place,)) for place, (weight, row) in enumerate(zip(weights, means, strict=True))]
    while len(clusters) > size:
        a, b = min(
            ((a, b) for a in clusters for b in clusters if a[2] < b[2]),
            key=lambda pair: (
                pair[0][0] * pair[1][0] / (pair[0][0] + pair[1][0]) * float((pair[0][1] - pair[1][1]).square().sum())
            ),
        )
        clusters = [of for of in clusters if of is not a and of is not b]
        both = a[0] + b[0]
        clusters.append((both, (a[0] * a[1] + b[0] * b[1]) / both, a[2] + b[2]))
    return {tuple(sorted(members)) for _, _, members in clusters}


def test_weighted_merges_equal_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    weights = torch.randint(1, 20, (30,), generator=generator)
    merges = ward_merges(means, weights)
    for size in (30, 29, 20, 8, 2, 1):
        assert partition(merges.cut(size)) == slow_cut(means, weights.tolist(), size)


def test_merges_of_rows_equal_scipys() -> None:
    from scipy.cluster.hierarchy import fcluster, linkage

    rows = nested_classes()[:400]
    merges, scipys = ward_merges(rows, torch.ones(400)), linkage(rows.double().numpy(), method="ward")
    for size in (200, 60, 7):
        assert partition(merges.cut(size)) == partition(torch.from_numpy(fcluster(scipys, size, criterion="maxclust")))


def test_clusters_count_as_their_rows() -> None:
    """Joining clusters by means and counts goes on as joining their rows would."""
    rows = nested_classes()[:300]
    merges = ward_merges(rows, torch.ones(300))
    parts = merges.cut(80)
    counts = parts.bincount().double()
    means = torch.zeros(80, rows.shape[1], dtype=torch.float64).index_add_(0, parts, rows.double()) / counts[:, None]
    assert partition(ward_merges(means, counts).cut(12)[parts]) == partition(merges.cut(12))


def test_equal_rows_and_equal_costs() -> None:
    """The corners of a cube, ten times each: all costs are equal, and no two corners are joined before the copies."""
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
    merges = ward_merges(corners.repeat(10, 1), torch.ones(80))
    assert torch.equal(merges.cut(8)[:8].sort().values, torch.arange(8))
    assert torch.equal(merges.cut(8), merges.cut(8)[:8].repeat(10))


@pytest.mark.parametrize("rows", [torch.ones(600, 4), torch.eye(600)], ids=["equal", "orthogonal"])
def test_equal_costs_are_joined_in_few_rounds(rows: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from hirl.hierarchy import ward

    rounds, search = iter(range(100)), ward._nearest
    monkeypatch.setattr(ward, "_nearest", lambda *given: search(*given) if next(rounds) < 99 else None)
    ward.ward_merges(rows, torch.ones(600))


def ward(features: Tensor, levels: tuple[int, ...] = LEVELS, **options: Any) -> PrototypeTree:
    return hierarchical_kmeans(features, levels, order="ward", **options)


@pytest.mark.parametrize("kind", ["rank 7", "nested classes", "power law", "nearly collapsed"])
def test_leaves_are_nearer_and_no_smaller_than_those_of_flat_k_means(kind: str) -> None:
    features = FEATURES[kind][:1500]
    tree, flat = ward(features, linked=600), hierarchical_kmeans(features, LEVELS[:1])
    assert int(tree.sizes(0).min()) >= 1
    assert single(tree) <= single(flat) + 0.02
    assert distance(features, tree) <= (1.1 if kind == "rank 7" else 1.0) * distance(features, flat)


@pytest.mark.parametrize("kind", FEATURES)
def test_the_default_for_pooled_features_leaves_no_row_alone_and_is_as_near_as_top_down(kind: str) -> None:
    features = FEATURES[kind][:1500]
    plain = replace(POOLED_FEATURES, order="top-down", averaged=0)
    tree, flat, top_down = POOLED_FEATURES(features, LEVELS), plain(features, LEVELS[:1]), plain(features, LEVELS)
    assert int(tree.sizes(0).min()) >= 1
    assert single(tree) <= single(flat) + 0.005
    assert distance(features, tree) <= 1.02 * distance(features, top_down)


def test_small_clusters_in_place_of_rows_change_little() -> None:
    features, classes = heavy_tail()
    sizes = classes.bincount()
    exact, clustered = ward(features), ward(features, linked=1000)
    assert distance(features, clustered) <= 1.05 * distance(features, exact)
    for tree in (exact, clustered):
        assert int(tree.sizes(0).min()) >= 1
        assert torch.equal(tree.assign(features), tree.leaves)
        alone = tree.sizes(0)[tree.leaves] == 1
        assert int((sizes[classes[alone]] > N // 100).sum()) <= 1


def test_levels_too_fine_for_linkage_are_split_top_down() -> None:
    tree = ward(nested_classes(), (400, 100, 10), linked=500)
    exact = ward(nested_classes(), (100, 10))
    assert tree.levels == (400, 100, 10)
    assert int(tree.sizes(0).min()) >= 1
    assert adjusted_rand(tree.image_paths[:, 1], exact.leaves) > 0.7
    only_fine = ward(nested_classes(), (400,), linked=500)
    assert torch.equal(only_fine.leaves, hierarchical_kmeans(nested_classes(), (400,)).leaves)


def slow_average(rows: Tensor, counts: Tensor, neighbours: int) -> Tensor:
    """One row after the other: it and its nearest, by their counts, twice."""
    units = [row / row.norm() for row in rows]
    for _ in range(2):
        found = []
        for place, unit in enumerate(units):
            others = sorted(
                (other for other in range(len(units)) if other != place), key=lambda i: -float(unit @ units[i])
            )
            together = sum((counts[i] * units[i] for i in others[:neighbours]), counts[place] * unit)
            found.append(together / together.norm())
        units = found
    return torch.stack(units)


def test_averages_equal_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, counts = torch.randn(40, 6, generator=generator), torch.randint(1, 9, (40,), generator=generator)
    for neighbours in (4, 9, 100):
        averaged = Parts(torch.arange(40), rows, counts).smoothed_directions(neighbours)
        torch.testing.assert_close(averaged, slow_average(rows, counts, min(neighbours, 39)))


def test_averaged_rows_are_not_joined_across_what_lies_between_groups() -> None:
    """Ten groups in noise: linkage of the rows mixes some of them, of averaged rows far less."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(600) % 10
    features = torch.randn(10, 64, generator=generator)[groups] + 2.0 * torch.randn(600, 64, generator=generator)
    plain, averaged = (adjusted_rand(ward(features, (10,), averaged=count).leaves, groups) for count in (0, 5))
    assert averaged > plain + 0.1


def test_averages_leave_repeated_rows_together_and_distinct_rows_countable() -> None:
    """Six rows that are each other's nearest have one average, and are six directions all the same."""
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(20, 32, generator=generator).repeat_interleave(6, 0)
    features = near + 0.01 * torch.randn(120, 32, generator=generator)
    tree = ward(features, (60, 20), averaged=5)
    assert int(tree.sizes(0).min()) >= 1
    assert adjusted_rand(tree.image_paths[:, 1], torch.arange(120) // 6) == 1
    copies = ward(features.repeat(3, 1), (60, 20), averaged=5).leaves
    assert torch.equal(copies[:120], copies[120:240])
    with pytest.raises(ValueError, match="only 120 different directions"):
        ward(features.repeat(3, 1), (121, 20), averaged=5)


@pytest.mark.parametrize("linked", [5000, 400])
def test_repeated_rows(linked: int) -> None:
    """900 of 1,000 rows are one of three directions: the others get the leaves, and more leaves are refused."""
    generator = torch.Generator().manual_seed(0)
    repeated = torch.randn(3, 32, generator=generator).repeat(300, 1)
    features = torch.cat((repeated, torch.randn(100, 32, generator=generator)))
    tree = ward(features, (45, 10), linked=linked)
    assert int(tree.sizes(0).min()) >= 1
    assert all(len(tree.leaves[:900][place::3].unique()) == 1 for place in range(3))
    with pytest.raises(ValueError, match=r"only 103 different directions \(0.001 or more apart\) in 1000 rows"):
        ward(features, (104, 10), linked=linked)


def test_a_later_tree_keeps_numbers_and_order_does_not_matter() -> None:
    features = nested_classes()[:800]
    first = ward(features, (80, 20))
    later = ward(features + 0.001, (80, 20), init=first)
    assert float((later.leaves == first.leaves).float().mean()) > 0.95
    order = torch.randperm(800, generator=torch.Generator().manual_seed(1))
    for linked in (800, 300):
        straight, shuffled = (
            ward(rows, (80, 20), linked=linked, index=index)
            for rows, index in ((features, None), (features[order], order))
        )
        assert torch.equal(shuffled.leaves, straight.leaves[order])


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="linked is 0, but must be at least 1"):
        ward(nested_classes(), linked=0)
    with pytest.raises(ValueError, match="averaged is -1, but must be at least 0"):
        ward(nested_classes(), averaged=-1)
    with pytest.raises(ValueError, match="averaged is for order ward, not top-down"):
        hierarchical_kmeans(nested_classes(), LEVELS, averaged=5)
    with pytest.raises(ValueError, match="order ward needs spherical"):
        ward(nested_classes(), spherical=False)
