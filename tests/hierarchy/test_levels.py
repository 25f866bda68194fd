"""Level sizes that suit a number of images, or their features."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import suggest_levels
from hirl.hierarchy.level_search import adjusted_rand, silhouette


def test_the_papers_levels_at_imagenet() -> None:
    assert suggest_levels(1_281_167) == (30000, 10000, 1000)
    assert suggest_levels(1_280_000) == (30000, 10000, 1000)


@pytest.mark.parametrize("N", [*range(4, 200), 999, 1797, 5000, 25_000, 60_000, 10**6, 10**8])
def test_levels_suit_any_number_of_images(N: int) -> None:
    levels = suggest_levels(N)
    assert 2 <= levels[0] <= N // 2
    assert list(levels) == sorted(set(levels), reverse=True)
    assert levels[-1] >= 2
    assert f"{N:,} images" in levels.why
    assert f"{levels[0]:,} leaves" in levels.why


def test_more_images_never_mean_fewer_leaves() -> None:
    leaves = [suggest_levels(N)[0] for N in range(4, 3000)]
    assert leaves == sorted(leaves)


def test_too_few_images_are_named() -> None:
    with pytest.raises(ValueError, match="at least 4 images, not 3"):
        suggest_levels(3)


def test_levels_travel() -> None:
    levels = suggest_levels(5000)
    for travelled in (copy.deepcopy(levels), pickle.loads(pickle.dumps(levels))):
        assert travelled == levels
        assert travelled.why == levels.why


def classes_of_features(count: int, per_class: int, *, spread: float = 0.3) -> Tensor:
    """Rows of `count` classes, in groups of 8 that lie closer together."""
    generator = torch.Generator().manual_seed(0)
    groups = F.normalize(torch.randn(-(-count // 8), 64, generator=generator), dim=1)
    classes = groups.repeat_interleave(8, 0)[:count] + 0.8 * F.normalize(
        torch.randn(count, 64, generator=generator), dim=1
    )
    noise = F.normalize(torch.randn(count * per_class, 64, generator=generator), dim=1)
    return classes.repeat_interleave(per_class, 0) + spread * noise


@pytest.mark.parametrize("count", [24, 64])
def test_levels_follow_the_classes_that_features_show(count: int) -> None:
    features = classes_of_features(count, 40)
    levels = suggest_levels(features)
    assert levels[0] == 3 * levels[1]
    assert count <= levels[1] <= 1.5 * count  # with exactly as many, K-means joins some classes and splits others
    assert levels[2] * 4 <= count
    assert levels == suggest_levels(features.numpy())
    which = "2,000 of the images" if len(features) > 2000 else "the images"
    assert f"fit {which} best: {levels[1]} (silhouette" in levels.why
    assert suggest_levels(len(features))[0] not in levels  # those for the number of images alone


def test_features_without_clusters_get_levels_for_their_number() -> None:
    features = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0))
    levels = suggest_levels(features)
    assert levels == suggest_levels(1000)
    assert levels.why.startswith("the features show no clear clusters; 1,000 images")
    assert suggest_levels(features[:10]) == suggest_levels(10)
    with pytest.raises(ValueError, match="at least 4 images, not 3"):
        suggest_levels(features[:3])
    features[5] = torch.nan
    with pytest.raises(ValueError, match="row 5 of features is not finite"):
        suggest_levels(features)


def test_silhouette_and_rand_index_equal_those_of_scikit_learn() -> None:
    from sklearn.metrics import adjusted_rand_score, silhouette_score

    units = F.normalize(classes_of_features(8, 12), dim=1)
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.randint(5, (96,), generator=generator) for _ in range(2))
    clusters = torch.where(torch.arange(96) < 60, torch.arange(96) // 12, one)
    clusters[0] = 7  # a row alone
    expected = silhouette_score(units.numpy(), clusters.numpy(), metric="cosine")
    assert silhouette(units, clusters, 9) == pytest.approx(expected, abs=1e-5)
    assert adjusted_rand(clusters, other) == pytest.approx(adjusted_rand_score(clusters.numpy(), other.numpy()))
    assert adjusted_rand(one, (one + 1) % 5) == 1
