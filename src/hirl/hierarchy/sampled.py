"""Trees over more rows than can be clustered: built on a sample, in which large clusters may be thinned out.

Resampling follows the idea of *Automatic Data Curation for Self-Supervised Learning* (Vo et al., 2024,
arXiv:2405.15613): cluster, draw equally from the clusters, and cluster again, so that frequent content does not take
most of the prototypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.groups import place_in_group
from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.tree import NO_LEAF, PrototypeTree

Rows = npt.NDArray[np.floating]
CHUNK = 1 << 16  # rows that are assigned at a time
ROWS_PER_PROTOTYPE = 256
MIN_ROWS = 10  # rows per leaf below which a sample is not thinned out further


def sampled_tree(
    parts: Sequence[Rows],
    levels: Sequence[int],
    *,
    builder: TreeBuilder = HierarchicalKMeans(),  # noqa: B008 (frozen)
    rows_per_prototype: int = ROWS_PER_PROTOTYPE,
    resample: int = 0,
    seed: int = 0,
    progress: TreeProgress | None = None,
    assigned: Callable[[int, int], None] | None = None,
) -> PrototypeTree:
    """Build a tree on a sample of the rows of all parts and assign every row to it.

    Memory: the sample, what the builder needs for it, and 8 bytes per row for the leaves; parts may be memory-mapped.

    Args:
        parts: (n, D) each, of any float type; a row whose first value is NaN has no leaf.
        levels: Prototypes per level, fine to coarse.
        builder: What clusters the sample.
        rows_per_prototype: Rows of the sample per prototype of the finest level.
        resample: Number of times that the sample is thinned out, so that on each level no node has more rows than the
            mean of its level, and clustered again. A row is in the sample once or not at all. Stops early
            if fewer than 10 rows per leaf would remain.
        seed: Seed of all draws.
        progress: Called with (level, step, rows done) while the sample is clustered.
        assigned: Called with the number of rows assigned, and of all.
    """
    if rows_per_prototype < 1 or resample < 0:
        raise ValueError(
            f"rows_per_prototype is {rows_per_prototype} and resample {resample}, but must be at least 1 and 0"
        )
    rows = draw_rows(parts, rows_per_prototype * levels[0], seed=seed)
    tree = builder(rows, levels, seed=seed, progress=progress)
    for turn in range(resample):
        kept = thin_out(tree.image_paths.numpy(), seed=(seed, turn + 1))
        if len(kept) < MIN_ROWS * levels[0]:
            break
        rows = rows[kept]
        tree = builder(rows, levels, seed=seed, progress=progress)
    return replace(tree, leaves=assign_all(tree, parts, assigned))


def draw_rows(parts: Sequence[Rows], count: int, *, seed: int) -> Rows:
    """At most `count` different rows of all parts, in their order; rows without values are left out."""
    ends = np.cumsum([len(part) for part in parts])
    total = int(ends[-1])
    random = np.random.default_rng((seed, 0))
    chosen = np.sort(random.choice(total, count, replace=False, shuffle=False)) if count < total else np.arange(total)
    cuts = np.searchsorted(chosen, ends)
    drawn = []
    for part, end, first, last in zip(parts, ends, (0, *cuts[:-1]), cuts, strict=True):
        rows = np.asarray(part[chosen[first:last] - (end - len(part))])
        drawn.append(rows[~np.isnan(rows[:, 0])])
    return np.concatenate(drawn)


def thin_out(paths: npt.NDArray[np.integer], *, seed: tuple[int, int]) -> npt.NDArray[np.integer]:
    """The rows that stay, in order, of rows with these paths (n, L), fine → coarse.

    From the coarsest level down, each node keeps at most the mean number of rows per node, drawn at random.
    """
    random = np.random.default_rng(seed)
    kept = random.permutation(len(paths))
    for nodes in reversed(paths.T):
        sizes = np.bincount(nodes[kept])
        most = -(-len(kept) // np.count_nonzero(sizes))
        kept = kept[np.argsort(nodes[kept], kind="stable")]  # by node, at random within it
        places = place_in_group(torch.from_numpy(nodes[kept])).numpy()
        kept = random.permutation(kept[places < most])
    return np.sort(kept)


def assign_all(
    tree: PrototypeTree, parts: Sequence[Rows], assigned: Callable[[int, int], None] | None = None
) -> Tensor:
    """(N,): the leaf of every row of all parts; NO_LEAF for a row without values."""
    total = sum(map(len, parts))
    leaves = torch.full((total,), NO_LEAF)
    done = 0
    for part in parts:
        for start in range(0, len(part), CHUNK):
            rows = torch.from_numpy(np.array(part[start : start + CHUNK], dtype=np.float32))
            known = (~rows[:, 0].isnan()).nonzero().flatten()
            if len(known):
                leaves[done + known] = tree.assign(rows[known])
            done += len(rows)
            if assigned is not None:
                assigned(done, total)
    return leaves
