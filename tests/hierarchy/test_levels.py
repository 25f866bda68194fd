"""Level sizes that suit a number of images."""

from __future__ import annotations

import copy
import pickle

import pytest

from hirl import suggest_levels


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
