"""Trees of a sample: all rows are assigned, memory is bounded, and thinning out balances the prototypes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from hirl.hierarchy.builder import hierarchical_kmeans
from hirl.hierarchy.sampled import draw_rows, sampled_tree, thin_out


def clusters(sizes: list[int], dim: int = 8) -> np.ndarray:
    random = np.random.default_rng(0)
    centres = 4 * random.normal(size=(len(sizes), dim))
    return np.concatenate([centres[one] + random.normal(size=(size, dim)) for one, size in enumerate(sizes)])


def test_a_sample_of_all_rows_gives_the_tree_of_all_rows() -> None:
    rows = clusters([40] * 6).astype(np.float16)
    tree = sampled_tree([rows[:100], rows[100:]], (6, 2), rows_per_prototype=1000, seed=3)
    expected = hierarchical_kmeans(rows, (6, 2), seed=3)
    assert torch.equal(tree.leaves, expected.leaves)
    for mine, theirs in zip(tree.prototypes, expected.prototypes, strict=True):
        assert torch.equal(mine, theirs)


def test_every_row_gets_the_leaf_nearest_to_it_and_unreadable_ones_none() -> None:
    rows = clusters([60] * 6).astype(np.float32)
    rows[[5, 200]] = np.nan
    tree = sampled_tree([rows[:150], rows[150:151], rows[151:]], (6, 2), rows_per_prototype=10)
    assert tree.leaves[[5, 200]].tolist() == [-1, -1]
    known = np.delete(np.arange(360), [5, 200])
    assert torch.equal(tree.leaves[known], tree.assign(rows[known]))


def test_drawn_rows_are_different_rows_in_order() -> None:
    parts = [np.arange(0, 50.0)[:, None], np.arange(50, 57.0)[:, None], np.arange(57, 100.0)[:, None]]
    drawn = draw_rows(parts, 30, seed=1)[:, 0]
    assert len(drawn) == 30
    assert (np.diff(drawn) > 0).all()
    assert np.array_equal(drawn, draw_rows(parts, 30, seed=1)[:, 0])
    assert not np.array_equal(drawn, draw_rows(parts, 30, seed=2)[:, 0])
    assert len(draw_rows(parts, 1000, seed=1)) == 100


def test_thinning_cuts_large_nodes_to_the_mean_and_keeps_small_ones() -> None:
    roots = np.repeat([0, 1, 3], [90, 6, 4])
    leaves = np.repeat([0, 1, 2, 3, 4], [80, 10, 6, 2, 2])
    paths = np.stack((leaves, roots), axis=1)
    assert np.bincount(roots[thin_out(paths[:, 1:], seed=(0, 1))]).tolist() == [34, 6, 0, 4]  # 100 rows in 3 roots
    kept = thin_out(paths, seed=(0, 1))
    assert np.bincount(roots[kept]).max() < 34  # its larger leaf is cut as well
    assert (np.bincount(leaves[kept])[2:] == [6, 2, 2]).all()
    assert len(set(kept.tolist())) == len(kept)


def test_resampling_gives_rare_content_more_of_the_prototypes() -> None:
    """One cluster has 96 % of the rows; a prototype belongs to the cluster that most of its rows are from."""
    sizes = [4800, 50, 50, 50, 50]
    rows, of = clusters(sizes), np.repeat(np.arange(5), sizes)

    def in_the_large_one(resample: int) -> int:
        tree = sampled_tree([rows], (20, 5), rows_per_prototype=1000, resample=resample)
        leaves = tree.leaves.numpy()
        return sum(bool((of[leaves == leaf] == 0).mean() > 0.5) for leaf in range(20) if (leaves == leaf).any())

    assert in_the_large_one(4) < in_the_large_one(0)


def test_memory_is_that_of_the_sample(tmp_path: Path) -> None:
    """Rows on disk of 51 MB in all; a sample of 0.8 MB, chunks of 65,536 rows and 8 bytes a row in memory."""
    random = np.random.default_rng(0)
    parts = []
    for part in range(4):
        np.save(tmp_path / f"{part}.npy", random.normal(size=(100_000, 64)).astype(np.float16))
        parts.append(np.load(tmp_path / f"{part}.npy", mmap_mode="r"))
    tracemalloc.start()  # which numpy reports to; torch's chunks are bounded by `rows.CHUNK_VALUES`
    tree = sampled_tree(parts, (32, 4), rows_per_prototype=200)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tree.leaves) == 400_000
    assert peak < 40e6


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="rows_per_prototype is 0 and resample 0, but must be at least 1 and 0"):
        sampled_tree([clusters([10])], (2,), rows_per_prototype=0)
