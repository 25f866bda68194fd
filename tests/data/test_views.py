"""Descriptions of views, drawn colours and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hirl.data.views import BlockMask, Blur, Jitter, View, multi_crop, pair
from hirl.data.views.parameters import colours

SAMPLES = np.arange(200_000)  # many: a wrong range or rate of a percent shows, a chance dip does not


def uniform_between(values: np.ndarray, low: float, high: float) -> bool:
    return bool(stats.kstest(values, "uniform", args=(low, high - low)).pvalue > 0.005)


def test_colours_follow_the_description() -> None:
    view = View(
        jitter=Jitter(brightness=0.4, contrast=0.3, saturation=1.2, hue=0.1, probability=0.8),
        grey=0.2,
        blur=Blur(probability=0.5, sigma=(0.1, 2.0)),
        solarise=0.1,
    )
    drawn = colours(0, 0, SAMPLES, (view,), (0,))
    on = drawn.order >= 0
    blurred = drawn.sigma > 0
    for happened, rate in ((on, 0.8), (drawn.grey, 0.2), (blurred, 0.5), (drawn.solarise, 0.1)):
        assert stats.binomtest(int(happened.sum()), len(SAMPLES), rate).pvalue > 0.005
    assert stats.chisquare(np.bincount(drawn.order[on], minlength=24)).pvalue > 0.005
    bounds = ((0.6, 1.4), (0.7, 1.3), (0.0, 2.2), (-0.1, 0.1))
    for column, (low, high) in enumerate(bounds):
        assert uniform_between(drawn.factors[on, column], low, high)
    assert uniform_between(drawn.sigma[blurred], 0.1, 2.0)


def test_turning_an_operation_off_leaves_the_other_draws() -> None:
    full, bare = View(jitter=Jitter(), grey=0.2, blur=Blur()), View(jitter=Jitter(), blur=Blur())
    with_grey, without = (colours(0, 0, SAMPLES, (view,), (0,)) for view in (full, bare))
    np.testing.assert_array_equal(with_grey.factors, without.factors)
    np.testing.assert_array_equal(with_grey.sigma, without.sigma)
    assert not without.grey.any()


def test_views_of_a_pair_differ() -> None:
    views = pair(View(jitter=Jitter()))
    drawn = colours(0, 0, SAMPLES, views, (0, 1))
    first, second = np.split(drawn.factors[:, 0], 2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.01


def test_masks_have_the_share_asked_for() -> None:
    mask = BlockMask(patch=16)
    hidden = mask.draw(224, 0, 0, np.arange(1500), 0).numpy()
    assert hidden.shape == (1500, 14, 14)
    share = hidden.mean((1, 2))
    assert stats.binomtest(int((share > 0).sum()), 1500, 0.5).pvalue > 0.005
    some = share[share > 0]
    assert some.max() <= 0.5
    # blocks end at or below the ratio drawn, which is uniform between .1 and .5
    assert 0.25 < some.mean() <= 0.31
    assert some.min() >= 0.03


def test_masks_are_blocks() -> None:
    """Neighbours share a patch's fate far more often than patches hidden one by one would."""
    hidden = BlockMask(probability=1.0, spread=0.0).draw(224, 0, 0, np.arange(300), 0).numpy()
    both = (hidden[:, :, 1:] & hidden[:, :, :-1]).mean()
    assert both > 2 * hidden.mean() ** 2


def test_masks_do_not_depend_on_their_company() -> None:
    together = BlockMask().draw(64, 1, 2, np.arange(40), 1)
    part = BlockMask().draw(64, 1, 2, np.array([31, 7]), 1)
    assert (part == together[[31, 7]]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: View(size=0), "View.size"),
        (lambda: View(scale=(0.5, 0.2)), "View.scale"),
        (lambda: View(scale=(0.0, 1.0)), "View.scale"),
        (lambda: View(ratio=(2.0, 1.0)), "View.ratio"),
        (lambda: View(flip=1.5), "View.flip"),
        (lambda: View(interpolation="nearest"), "bicubic"),  # type: ignore[arg-type]
        (lambda: View(size=30, mask=BlockMask(patch=16)), "multiple"),
        (lambda: Jitter(hue=0.6), "Jitter.hue"),
        (lambda: Jitter(contrast=-1), "Jitter.contrast"),
        (lambda: Blur(sigma=(0.0, 1.0)), "Blur.sigma"),
        (lambda: BlockMask(ratio=0.1, spread=0.2), "BlockMask.ratio"),
        (lambda: BlockMask(patch=0), "BlockMask.patch"),
        (lambda: multi_crop((View(),), View(), -1), "count"),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
