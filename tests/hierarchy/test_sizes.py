"""The sizes of a tree's leaves: as even as those of flat K-means, on features of every kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import PrototypeTree, hierarchical_kmeans

N, LEVELS = 3000, (300, 100, 10)


def isotropic(rank: int) -> Tensor:
    """Rows without any clusters, in `rank` dimensions."""
    return torch.randn(N, rank, generator=torch.Generator().manual_seed(rank))


def nested_classes() -> Tensor:
    """10 groups of 10 classes each, in 128 dimensions."""
    generator = torch.Generator().manual_seed(0)
    groups = F.normalize(torch.randn(10, 128, generator=generator), dim=1)
    classes = groups.repeat_interleave(10, 0) + 0.6 * F.normalize(torch.randn(100, 128, generator=generator), dim=1)
    which = torch.randint(100, (N,), generator=generator)
    return classes[which] + 0.5 * F.normalize(torch.randn(N, 128, generator=generator), dim=1)


def power_law() -> Tensor:
    """A spectrum that falls as 1/k, as that of pretrained networks' features roughly does."""
    return torch.randn(N, 256, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 257).float() ** -0.5


def heavy_tail() -> tuple[Tensor, Tensor]:
    """Many classes of few rows beside a few of many, and the class of each row."""
    generator = torch.Generator().manual_seed(0)
    which = torch.multinomial(torch.arange(1, 151).float() ** -1.2, N, replacement=True, generator=generator)
    classes = F.normalize(torch.randn(150, 128, generator=generator), dim=1)
    return classes[which] + 0.6 * F.normalize(torch.randn(N, 128, generator=generator), dim=1), which


def nearly_collapsed(spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centre = F.normalize(torch.randn(128, generator=generator), dim=0)
    return centre + spread * torch.randn(N, 128, generator=generator) / 128**0.5


FEATURES = {
    "rank 7": isotropic(7),
    "rank 32": isotropic(32),
    "rank 128": isotropic(128),
    "rank 1000": isotropic(1000),
    "nested classes": nested_classes(),
    "power law": power_law(),
    "nearly collapsed": nearly_collapsed(0.01),
}


def single(tree: PrototypeTree) -> float:
    """The share of leaves with a single image."""
    return float((tree.sizes(0) == 1).float().mean())


def distance(features: Tensor, tree: PrototypeTree) -> float:
    """The mean of 1 − cos between an image and its leaf."""
    units = F.normalize(features, dim=1)
    return float(1 - (units * tree.prototypes[0][tree.leaves]).sum(1).mean())


@pytest.mark.parametrize("kind", FEATURES)
def test_leaves_are_no_smaller_than_those_of_flat_k_means(kind: str) -> None:
    features = FEATURES[kind]
    tree, flat = hierarchical_kmeans(features, LEVELS), hierarchical_kmeans(features, LEVELS[:1])
    assert int(tree.sizes(0).min()) >= 1
    assert single(tree) <= single(flat) + 0.005
    assert distance(features, tree) <= 1.2 * distance(features, flat)


def test_with_a_heavy_tail_single_images_are_of_small_classes() -> None:
    features, classes = heavy_tail()
    sizes = classes.bincount()
    for seed in range(3):
        tree = hierarchical_kmeans(features, LEVELS, seed=seed)
        counts = tree.sizes(0)
        assert int(counts.min()) >= 1
        alone = counts[tree.leaves] == 1
        assert int((sizes[classes[alone]] > N // 100).sum()) <= 1  # one of 300 leaves
        assert distance(features, tree) < 0.14  # of flat K-means: 0.13


def test_outliers_keep_leaves_of_their_own() -> None:
    """Ten rows far from all others: each is better left alone than joined with rows it has nothing to do with."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(20, 64, generator=generator), dim=1)
    crowd = centres[torch.randint(20, (990,), generator=generator)]
    crowd = crowd + 0.1 * F.normalize(torch.randn(990, 64, generator=generator), dim=1)
    outliers = F.normalize(torch.randn(10, 64, generator=generator), dim=1)
    tree = hierarchical_kmeans(torch.cat((crowd, outliers)), (80, 30))
    counts = tree.sizes(0)
    assert counts[tree.leaves[990:]].tolist() == [1] * 10
    assert int((counts == 1).sum()) == 10


def test_repeated_rows_share_leaves() -> None:
    """900 of 1,000 rows are one of three directions: the other 100 rows need the leaves."""
    generator = torch.Generator().manual_seed(0)
    repeated = torch.randn(3, 32, generator=generator).repeat(300, 1)
    features = torch.cat((repeated, torch.randn(100, 32, generator=generator)))
    tree = hierarchical_kmeans(features, (60, 10))
    counts = tree.sizes(0)
    assert int(counts.min()) >= 1
    assert all(len(tree.leaves[:900][place::3].unique()) == 1 for place in range(3))
    assert int(counts.sort().values[:57].sum()) > 80


def test_few_directions_are_counted_as_they_differ() -> None:
    """40 directions with noise far below what counts as different, in which clusters outnumber directions."""
    generator = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(40, 16, generator=generator), dim=1).repeat(25, 1)
    features += 2e-4 * F.normalize(torch.randn(1000, 16, generator=generator), dim=1)
    for seed in range(5):
        tree = hierarchical_kmeans(features, (40, 8), seed=seed)
        assert tree.sizes(0).tolist() == [25] * 40
        assert all(len(tree.leaves[direction::40].unique()) == 1 for direction in range(40))
    with pytest.raises(
        ValueError, match=r"only 40 different directions \(0.001 or more apart\) in 1000 rows.* collapse"
    ):
        hierarchical_kmeans(features, (60, 8))
