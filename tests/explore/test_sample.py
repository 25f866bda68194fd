"""Samples through the tree: shares, picks, reproducibility."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hirl import PrototypeTree
from hirl.explore.collection import Collection
from hirl.explore.sample import PICKS, equal_shares, leaf_shares, sample_images


def test_shares_are_as_equal_as_sizes_allow() -> None:
    random = np.random.default_rng(0)
    assert equal_shares([10, 10, 10], 6, random) == [2, 2, 2]
    assert equal_shares([1, 10, 10], 9, random) == [1, 4, 4]
    assert equal_shares([0, 2, 3], 5, random) == [0, 2, 3]
    drawn = {tuple(equal_shares([9, 1, 5, 2, 5], 2, np.random.default_rng(seed))) for seed in range(50)}
    assert drawn == {(1, 0, 1, 0, 0), (1, 0, 0, 0, 1)}  # the largest, and one of the next two
    for seed in range(20):
        sizes = np.random.default_rng(seed).integers(0, 9, 7).tolist()
        total = int(np.random.default_rng(seed).integers(0, sum(sizes) + 1))
        shares = equal_shares(sizes, total, np.random.default_rng(seed))
        assert sum(shares) == total
        assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
        cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
        assert not cut or max(shares) - min(cut) <= 1  # nobody has more than one above those with room left


def test_every_level_shares_equally() -> None:
    tree = PrototypeTree(
        prototypes=(F.normalize(torch.randn(8, 4), dim=1), F.normalize(torch.randn(2, 4), dim=1)),
        parents=(torch.tensor([0, 0, 1, 1, 1, 1, 1, 1]),),
        leaves=torch.arange(8).repeat_interleave(50),
    )
    shares = leaf_shares(tree, 24, seed=0)
    assert shares == {0: 6, 1: 6, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2}
    assert sum(leaf_shares(tree, 25, seed=1).values()) == 25
    assert leaf_shares(tree, 5, seed=1) == leaf_shares(tree, 5, seed=1)
    assert any(leaf_shares(tree, 5, seed=1) != leaf_shares(tree, 5, seed=seed) for seed in range(2, 6))


@pytest.mark.parametrize("pick", ["typical", "spread"])
def test_samples_are_distinct_and_repeat_with_the_seed(collection: Collection, pick: str) -> None:
    for size in (1, 7, 30, 60):
        chosen = sample_images(collection, size, pick=pick, seed=3)  # type: ignore[arg-type]
        assert len(set(chosen)) == size
        assert chosen == sample_images(collection, size, pick=pick, seed=3)  # type: ignore[arg-type]
    assert sorted(sample_images(collection, 60)) == list(range(60))


def test_picks(collection: Collection) -> None:
    """Of one leaf: the images of the largest cosines, or the first of them and those farthest from what is chosen."""
    one = replace(
        collection,
        tree=PrototypeTree((collection.tree.prototypes[0][:1],), (), torch.zeros(len(collection), dtype=torch.int64)),
    )
    order = one.typicality()[:, 0].argsort(descending=True).tolist()
    assert sample_images(one, 5) == order[:5]
    spread = sample_images(one, 5, pick="spread")
    assert spread[0] == order[0]
    unit = F.normalize(one.z[0], dim=1)
    for place in range(1, 5):
        nearest = (unit @ unit[spread[:place]].T).amax(1)
        assert spread[place] == int(nearest.argmin())


def test_copies_come_after_all_other_images_of_a_leaf(collection: Collection) -> None:
    z0 = collection.z[0].clone()
    z0[30:] = z0[:30]
    tree = PrototypeTree((collection.tree.prototypes[0][:1],), (), torch.zeros(len(collection), dtype=torch.int64))
    doubled = replace(collection, z=(z0,), features=z0, tree=tree)
    for pick in PICKS:
        assert len({image % 30 for image in sample_images(doubled, 30, pick=pick)}) == 30
        assert sorted(sample_images(doubled, 60, pick=pick)) == list(range(60))


def test_mistakes(collection: Collection) -> None:
    with pytest.raises(ValueError, match=r"size is 61, but must be at least 1 and at most the 60 readable images"):
        sample_images(collection, 61)
    with pytest.raises(ValueError, match=r"pick is 'nice', but must be one of typical, spread"):
        sample_images(collection, 5, pick="nice")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seed is -1"):
        sample_images(collection, 5, seed=-1)


def test_unsure_images_are_those_nearest_to_another_leaf(collection: Collection) -> None:
    tree = collection.tree
    margins = tree.margins(collection.z[0], tree.leaves)[:, 0]
    chosen = sample_images(collection, 30, pick="unsure")
    for leaf, share in leaf_shares(tree, 30, seed=0).items():
        images = tree.images(0, leaf)
        assert [index for index in chosen if tree.leaves[index] == leaf] == images[margins[images].argsort()][
            :share
        ].tolist()
