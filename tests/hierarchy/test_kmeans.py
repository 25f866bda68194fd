"""Hierarchical K-means against brute force, a slow loop and scikit-learn, and on every input it must refuse."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hirl import PrototypeTree, hierarchical_kmeans
from hirl.hierarchy import rows as rows_module


def blobs(count: int, dim: int, centres: int, *, spread: float = 0.2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    middle = F.normalize(torch.randn(centres, dim, generator=generator), dim=1)
    which = torch.randint(centres, (count,), generator=generator)
    return middle[which] + spread * torch.randn(count, dim, generator=generator)


def inertia(features: Tensor, tree: PrototypeTree) -> float:
    """The mean squared distance of the unit rows to their leaves."""
    units = F.normalize(features.double(), dim=1)
    return float((units - tree.prototypes[0][tree.leaves]).square().sum(1).mean())


def start_from(prototypes: Tensor, rows: int) -> PrototypeTree:
    return PrototypeTree(prototypes=(prototypes,), parents=(), leaves=torch.zeros(rows, dtype=torch.int64))


def test_finds_the_best_partition_of_a_few_points() -> None:
    """Brute force over every way to put 9 points in 3 clusters."""
    features = torch.randn(9, 2, generator=torch.Generator().manual_seed(4))
    units = F.normalize(features.double(), dim=1)
    best = min(
        # On the sphere a cluster's best prototype is its mean direction, at a cost of 2 |cluster| − 2 |sum of rows|.
        sum(
            2 * float((torch.tensor(where) == k).sum()) - 2 * float(units[torch.tensor(where) == k].sum(0).norm())
            for k in range(3)
        )
        for where in itertools.product(range(3), repeat=9)
        if set(where) == {0, 1, 2}
    )
    tree = hierarchical_kmeans(features, (3,), restarts=30, tolerance=0)
    assert inertia(features, tree) * 9 == pytest.approx(best, rel=1e-6)


def test_lloyd_steps_equal_a_slow_loop() -> None:
    features = blobs(200, 6, 12)
    units = F.normalize(features, dim=1)
    prototypes = units[:10].clone()
    for _ in range(4):
        leaves = [int(torch.tensor([float(row @ prototype) for prototype in prototypes]).argmax()) for row in units]
        for node in range(10):
            prototypes[node] = F.normalize(sum(units[i] for i, leaf in enumerate(leaves) if leaf == node), dim=0)  # type: ignore[arg-type]
    tree = hierarchical_kmeans(features, (10,), init=start_from(units[:10], 200), iterations=4, tolerance=0)
    torch.testing.assert_close(tree.prototypes[0], prototypes)
    assert torch.equal(tree.leaves, (units @ prototypes.T).argmax(1))


def test_the_euclidean_one_equals_scikit_learn() -> None:
    from sklearn.cluster import KMeans

    features = blobs(600, 5, 12, spread=0.5)
    units = F.normalize(features, dim=1)
    tree = hierarchical_kmeans(
        features, (15,), init=start_from(units[:15], 600), iterations=300, tolerance=0, spherical=False
    )
    theirs = KMeans(15, init=units[:15].numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(units.numpy())
    assert torch.equal(tree.leaves, torch.from_numpy(theirs.labels_).long())
    centres = F.normalize(torch.from_numpy(theirs.cluster_centers_), dim=1)
    torch.testing.assert_close(tree.prototypes[0], centres, rtol=1e-4, atol=1e-5)


def test_as_good_as_scikit_learn_from_starts_of_its_own() -> None:
    from sklearn.cluster import KMeans

    features = blobs(2000, 8, 60, spread=0.3)
    units = F.normalize(features, dim=1).numpy()

    def scatter(tree: PrototypeTree) -> float:
        """The mean squared distance of the unit rows to the mean of their cluster."""
        of = [units[tree.images(0, node).numpy()] for node in range(60)]
        return sum(((rows - rows.mean(0)) ** 2).sum() for rows in of) / len(units)

    seeds = range(10)
    ours = [scatter(hierarchical_kmeans(features, (60,), seed=seed, spherical=False)) for seed in seeds]
    theirs = [
        KMeans(60, init="random", n_init=1, max_iter=20, random_state=seed).fit(units).inertia_ / len(units)
        for seed in seeds
    ]
    assert np.mean(ours) < 1.01 * np.mean(theirs)


def test_levels_cluster_the_level_below() -> None:
    features = blobs(800, 8, 40)
    tree = hierarchical_kmeans(features, (60, 15, 4), order="bottom-up")
    assert tree.levels == (60, 15, 4)
    for level in (1, 2):
        below, here = tree.prototypes[level - 1], tree.prototypes[level]
        assert torch.equal(tree.parents[level - 1], (below @ here.T).argmax(1))
        assert set(tree.parents[level - 1].tolist()) == set(range(tree.levels[level]))
        torch.testing.assert_close(here.norm(dim=1), torch.ones(len(here)))
    assert torch.equal(tree.assign(features), tree.leaves)


def test_one_cluster_a_row_and_one_for_all() -> None:
    features = torch.randn(12, 6)
    tree = hierarchical_kmeans(features, (12, 1))
    assert sorted(tree.leaves.tolist()) == list(range(12))
    torch.testing.assert_close(tree.prototypes[0][tree.leaves], F.normalize(features, dim=1))
    torch.testing.assert_close(tree.prototypes[1][0], F.normalize(F.normalize(features, dim=1).sum(0), dim=0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type(dtype: torch.dtype) -> None:
    features = blobs(300, 16, 10).to(dtype)
    tree = hierarchical_kmeans(features, (10,))
    assert torch.equal(tree.assign(features), tree.leaves)
    again = hierarchical_kmeans(features.float(), (10,))
    torch.testing.assert_close(tree.prototypes[0], again.prototypes[0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_arrays_and_memory_maps_equal_tensors(tmp_path: Path, dtype: type[np.floating]) -> None:
    features = blobs(300, 16, 10).numpy().astype(dtype)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    expected = hierarchical_kmeans(torch.from_numpy(features), (20, 5))
    for given_features in (features, mapped, features[:, ::-1][:, ::-1]):
        tree = hierarchical_kmeans(given_features, (20, 5))
        assert all(map(torch.equal, tree.prototypes, expected.prototypes))
        assert torch.equal(tree.leaves, expected.leaves)
    assert torch.equal(expected.assign(mapped), expected.leaves)


def test_same_seed_same_bits_other_seed_other_tree() -> None:
    features = blobs(2000, 16, 50)
    one, same, other = (hierarchical_kmeans(features, (100, 10), seed=seed) for seed in (7, 7, 8))
    assert all(torch.equal(one.tensors()[name], same.tensors()[name]) for name in one.tensors())
    assert not torch.equal(one.prototypes[0], other.prototypes[0])


def test_the_order_of_the_rows_does_not_matter_if_their_positions_are_given() -> None:
    features = blobs(500, 8, 30)
    order = torch.randperm(500)
    plain = hierarchical_kmeans(features, (30, 5))
    mixed = hierarchical_kmeans(features[order], (30, 5), index=order)
    assert torch.equal(mixed.leaves, plain.leaves[order])
    torch.testing.assert_close(mixed.prototypes[0], plain.prototypes[0])
    for wrong, message in (
        (order[:9], r"shape \(500,\)"),
        (order.float(), "int64"),
        (order - 1, "-1, but must be 0"),
    ):
        with pytest.raises(ValueError, match=message):
            hierarchical_kmeans(features, (30, 5), index=wrong)


def test_numpy_sizes_and_places_are_as_good_as_any() -> None:
    features = blobs(100, 8, 10)
    expected = hierarchical_kmeans(features, (10, 3))
    levels, places = np.array([10, 3]), np.arange(100)
    assert torch.equal(hierarchical_kmeans(features, levels, index=places).leaves, expected.leaves)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"index reaches 9900000 with only 100 rows"):
        hierarchical_kmeans(features, (10, 3), index=torch.arange(100) * 100_000)


def test_global_generators_play_no_part() -> None:
    features = blobs(200, 8, 10)
    state = torch.get_rng_state()
    one = hierarchical_kmeans(features, (20,))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(hierarchical_kmeans(features, (20,)).leaves, one.leaves)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    features = blobs(1000, 16, 30)
    one_chunk = hierarchical_kmeans(features, (30, 5))
    monkeypatch.setitem(rows_module.CHUNK_VALUES, "cpu", 64 * 37)
    pieces = hierarchical_kmeans(features, (30, 5))
    assert torch.equal(pieces.leaves, one_chunk.leaves)
    torch.testing.assert_close(pieces.prototypes[0], one_chunk.prototypes[0])


def test_restarts_keep_the_best() -> None:
    features = blobs(400, 4, 12, spread=0.05)
    one = [inertia(features, hierarchical_kmeans(features, (12,), seed=seed)) for seed in range(6)]
    many = [inertia(features, hierarchical_kmeans(features, (12,), seed=seed, restarts=8)) for seed in range(6)]
    assert all(b <= a * (1 + 1e-9) for a, b in zip(one, many, strict=True))
    assert sum(many) < sum(one)


def steps_of(features: Tensor, **options: object) -> tuple[int, PrototypeTree]:
    steps: list[int] = []
    tree = hierarchical_kmeans(
        features,
        (50,),
        progress=lambda _level, step, _done: steps.append(step),
        **options,  # type: ignore[arg-type]
    )
    return max(steps), tree


def test_a_warm_start_stops_early_and_is_no_worse() -> None:
    features = blobs(3000, 16, 50, spread=0.4)
    cold_steps, cold = steps_of(features)
    moved = features + 0.02 * torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    warm_steps, warm = steps_of(moved, init=cold)
    _, again = steps_of(moved)
    assert warm_steps < cold_steps
    assert inertia(moved, warm) <= inertia(moved, again) * 1.001
    assert torch.equal(warm.assign(moved), warm.leaves)


def test_tolerance_is_the_share_of_rows_that_still_move() -> None:
    features = blobs(3000, 16, 50, spread=0.4)
    steps = [steps_of(features, tolerance=tolerance, iterations=100)[0] for tolerance in (0.5, 0.05, 0.0)]
    assert steps[0] < steps[1] < steps[2] < 100
    settled = steps_of(features, tolerance=0.0, iterations=100)[1]
    assert steps_of(features, init=settled, tolerance=0.0, iterations=100)[0] == 1


@settings(max_examples=60, deadline=None)
@given(
    distinct=st.integers(2, 12),
    repeats=st.integers(1, 30),
    clusters=st.integers(1, 12),
    seed=st.integers(0, 10_000),
    spherical=st.booleans(),
    iterations=st.integers(1, 4),
)
def test_no_cluster_is_left_empty(
    distinct: int, repeats: int, clusters: int, seed: int, spherical: bool, iterations: int
) -> None:
    """One direction repeated many times beside few others: draws collide and clusters run empty all the time."""
    generator = torch.Generator().manual_seed(seed)
    others = torch.randn(distinct - 1, 3, generator=generator)
    features = torch.cat((torch.randn(1, 3, generator=generator).expand(repeats, -1), others))
    if clusters > distinct:
        if clusters <= len(features):
            with pytest.raises(
                ValueError,
                match=rf"only {distinct} different directions .*in \d+ rows, too few for {clusters} clusters",
            ):
                hierarchical_kmeans(features, (clusters,), seed=seed, iterations=iterations, spherical=spherical)
        return
    tree = hierarchical_kmeans(features, (clusters,), seed=seed, iterations=iterations, spherical=spherical)
    assert int(tree.sizes(0).min()) >= 1
    if spherical:
        assert torch.equal(tree.assign(features), tree.leaves)


def test_a_warm_start_with_useless_prototypes_fills_all_clusters() -> None:
    features = blobs(500, 8, 20)
    far = -F.normalize(features.mean(0), dim=0).expand(20, -1)
    tree = hierarchical_kmeans(features, (20,), init=start_from(far.contiguous(), 500))
    assert int(tree.sizes(0).min()) >= 1


MEMORY = """
import sys, numpy as np
from pathlib import Path
from hirl import hierarchical_kmeans

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

features = np.load(sys.argv[1], mmap_mode="r")
hierarchical_kmeans(features[:5000], (64,), iterations=1)  # what the libraries keep for good
before, peak = held(), []
hierarchical_kmeans(features, (64,), iterations=2, progress=lambda *_: peak.append(held()))
print(max(peak) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_memory_beyond_the_features_is_bounded(tmp_path: Path) -> None:
    """A mapped file of 100 MB: what a process itself holds grows by the bound that is stated, not by the file."""
    N, D, M = 100_000, 256, 64
    np.save(tmp_path / "f.npy", np.random.default_rng(0).standard_normal((N, D), dtype=np.float32))
    # What the code holds, not what the allocator keeps for later: with this it gives back large blocks at once.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "f.npy")]
    output = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert int(output.stdout) < 48 * 2**20 + 40 * N + 8 * M * D


GOOD = torch.randn(20, 4)


def broken(row: int, value: float) -> Tensor:
    features = GOOD.clone()
    features[row] = value
    return features


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (broken(7, torch.nan), {}, "row 7 of features is not finite"),
        (broken(3, torch.inf), {}, "row 3 of features is not finite"),
        (broken(5, 0.0), {}, "row 5 of features has length 0 in float32"),
        (GOOD[0], {}, r"shape \(N, D\), not \(4,\)"),
        (GOOD[None], {}, r"shape \(N, D\), not \(1, 20, 4\)"),
        (GOOD[:, :0], {}, "no columns"),
        (GOOD.long(), {}, "float type.*int64"),
        (GOOD.tolist(), {}, "torch tensor or a numpy array, not list"),
        (GOOD[:0], {"levels": (3,)}, "3 clusters of only 0 rows"),
        (GOOD, {"levels": (21, 3)}, r"21 clusters of only 20 rows"),
        (GOOD, {"levels": (8, 8)}, "must decrease.*8 follows 8"),
        (GOOD, {"levels": (3, 8)}, "must decrease.*8 follows 3"),
        (GOOD, {"levels": ()}, "at least one level"),
        (GOOD, {"levels": (8, 0)}, "at least 1, not 0"),
        (GOOD, {"levels": (8, 2.5)}, "whole numbers.*2.5"),
        (GOOD, {"levels": 8}, "8, but must be sizes"),
        (GOOD, {"levels": "8,2"}, "'8,2', but must be sizes"),
        (GOOD[:1].expand(20, -1), {}, "only 1 different directions.*in 20 rows, too few for 2"),
        (GOOD, {"iterations": 0}, "iterations is 0, but must be at least 1"),
        (GOOD, {"restarts": 0}, "restarts is 0, but must be at least 1"),
        (GOOD, {"seed": -1}, "seed is -1, but must be at least 0"),
        (GOOD, {"tolerance": 1.5}, r"tolerance.*\[0, 1\), not 1.5"),
        (GOOD, {"init": start_from(F.normalize(GOOD[:5], dim=1), 20)}, r"init has levels \(5,\)"),
        (GOOD, {"init": start_from(F.normalize(GOOD[:8, :3], dim=1), 20), "levels": (8,)}, "dimension 3"),
    ],
)
def test_bad_input_is_named(features: Tensor, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hierarchical_kmeans(features, **({"levels": (8, 2)} | options))  # type: ignore[arg-type]


def test_scaled_rows_are_no_different() -> None:
    features = blobs(300, 8, 10)
    scales = 10.0 ** torch.linspace(-30, 30, 300)
    expected = hierarchical_kmeans(features, (10,))
    assert torch.equal(hierarchical_kmeans(features * scales[:, None], (10,)).leaves, expected.leaves)
