"""Paired tests against scipy's, and what a table shows of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import permutation_test, ttest_1samp

from hirl.studies.comparison_tables import FEWEST_EPOCHS, Figures, numbers, pooled, running_time, side_by_side
from hirl.studies.paired import FLIPS, paired
from hirl.terminal.figures import score, share


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_pairs_are_compared_by_a_t_test(count: int) -> None:
    differences = np.random.default_rng(count).normal(0.3, 1, count)
    found = paired(differences.tolist())
    assert found is not None
    assert found.test == "t"
    assert found.difference == pytest.approx(differences.mean())
    assert found.error == pytest.approx(differences.std(ddof=1) / count**0.5)
    assert found.p == pytest.approx(ttest_1samp(differences, 0).pvalue)


def test_differences_that_are_equal_up_to_rounding_have_no_spread() -> None:
    """One test image of 120 in each of two pairs is no proof of anything."""
    found = paired([25 / 120 - 24 / 120, 31 / 120 - 30 / 120])
    assert found is not None
    assert (found.error, found.p) == (0, None)


@pytest.mark.parametrize("count", [6, 9])
def test_more_pairs_are_compared_by_flipping_signs(count: int) -> None:
    differences = np.random.default_rng(count).normal(0.5, 1, count)
    found = paired(differences.tolist())
    assert found is not None
    assert found.test == "sign flips"
    exact = permutation_test((differences, np.zeros(count)), lambda a, b: (a - b).mean(), permutation_type="samples")
    assert found.p == pytest.approx(exact.pvalue)


def test_many_pairs_are_compared_by_some_of_the_flips() -> None:
    differences = np.random.default_rng(0).normal(0.3, 1, 30)
    found = paired(differences.tolist())
    assert found is not None
    assert found == paired(differences.tolist())
    assert found.p == pytest.approx(ttest_1samp(differences, 0).pvalue, abs=0.02)
    assert paired([1.0] * 30).p == 1 / FLIPS  # type: ignore[union-attr]


def test_without_a_spread_there_is_no_p_value() -> None:
    assert paired([]) is None
    one = paired([0.5])
    assert one is not None
    assert (one.difference, one.error, one.p) == (0.5, None, None)
    equal = paired([0.25, 0.25])
    assert equal is not None
    assert (equal.error, equal.p) == (0, None)


def test_tables() -> None:
    figures: Figures = {}
    for method in ("A", "B"):
        for seed in (0, 1, 2):
            figures[method, "base", seed] = {"knn": share(0.5 + 0.01 * seed)}
            figures[method, "HIRL", seed] = {"knn": share(0.51 + 0.02 * seed)}
    figures["B", "HIRL", 0] = {"knn": share(0.51), "own": share(0.1)}
    heading, first, *_ = side_by_side(figures, [0, 1, 2])
    assert heading == ["method", "figure", "base", "HIRL", "difference", "p (t)"]
    expected = ttest_1samp([0.01, 0.02, 0.03], 0).pvalue
    assert first == ["A", "knn", "51.00 ± 1.00", "53.00 ± 2.00", "+2.00 ± 0.58", f"{expected:.3f}"]
    _, row, *_ = pooled(figures, [0, 1, 2])
    assert row == ["knn", "HIRL", "6 of 6", "+2.00 ± 0.37", "0.031", "sign flips"]
    csv = numbers(figures, [0, 1, 2])
    assert csv[2][:5] == ["A", "knn", "HIRL", pytest.approx(0.53), pytest.approx(0.02)]
    error = pytest.approx(0.00577, rel=1e-2)
    assert csv[2][5:11] == [pytest.approx(0.02), error, 3, 0, pytest.approx(expected), "t"]


def test_figures_that_are_not_finite_are_counted_and_left_out() -> None:
    seeds = list(range(6))
    figures: Figures = {("A", "base", seed): {"knn": share(0.5 + 0.01 * seed)} for seed in seeds}
    figures |= {("A", "HIRL", seed): {"knn": share(0.51 + 0.02 * seed)} for seed in seeds}
    figures["A", "HIRL", 5] = {"knn": share(math.nan)}
    rest = [0.01 + 0.01 * seed for seed in seeds[:5]]
    p, error = ttest_1samp(rest, 0).pvalue, 100 * np.std(rest, ddof=1) / 5**0.5
    heading, row = side_by_side(figures, seeds)
    assert heading[-1] == "p (sign flips)"  # for which five pairs are too few
    base, hirl, difference, p_value = row[2:]
    assert base == "52.50 ± 1.87"
    assert hirl == "55.00 ± 3.16 (1 of 6 not finite)"
    assert difference == f"+3.00 ± {error:.2f} (1 pair left out)"
    assert p_value == f"{p:.3f} (t)"
    assert pooled(figures, seeds)[1][2:4] == ["5 of 5", difference]
    csv = numbers(figures, seeds)[2]
    assert csv[7:9] == [5, 1]
    assert math.isnan(csv[-1])


def test_differences_have_minus_signs_and_zero_has_none() -> None:
    base, near = (0.5, 0.6, 0.7), (0.50001, 0.59998, 0.7)
    figures: Figures = {}
    for seed in (0, 1, 2):
        figures["A", "base", seed] = {"knn": share(base[seed]), "heights": score(-0.1)}
        figures["A", "near", seed] = {"knn": share(near[seed]), "heights": score(-0.3)}
    _, knn, heights = side_by_side(figures, [0, 1, 2])
    assert knn[4] == "0.00 ± 0.00"
    assert heights[2:] == ["−0.100 ± 0.000", "−0.300 ± 0.000", "−0.200 ± 0.000", "– (all equal)"]


FEW = "– (too few pairs)"


def test_an_arm_without_any_finite_figure_is_reported() -> None:
    figures: Figures = {("A", "base", seed): {"knn": share(0.5)} for seed in (0, 1)}
    figures |= {("A", "HIRL", seed): {"knn": share(value)} for seed, value in ((0, math.nan), (1, math.inf))}
    assert side_by_side(figures, [0, 1])[1] == ["A", "knn", "50.00 ± 0.00", "NaN", "NaN (2 pairs left out)", FEW]
    assert pooled(figures, [0, 1])[1] == ["knn", "HIRL", "0 of 0", "NaN (2 pairs left out)", FEW, ""]


@pytest.mark.parametrize(("base", "hirl", "known"), [(3, 1, False), (3, 0, False), (4, 9, False), (5, 5, True)])
def test_a_ratio_of_times_needs_some_epochs(base: int, hirl: int, known: bool) -> None:
    """Counted over the seeds, in both arms."""
    times: Figures = {("DINO", "base", 0): {"seconds": 4.0, "epochs": base - 1}}
    times |= {("DINO", "base", 1): {"seconds": 4.0, "epochs": 1}, ("DINO", "HIRL", 1): {"seconds": 5, "epochs": hirl}}
    heading, row = running_time(times, [0, 1])
    assert heading[-1] == f"ratio (from {FEWEST_EPOCHS} epochs each)"
    assert row == ["DINO", "HIRL", "4.0", "5.0", f"{base} / {hirl}", "1.25×" if known else "too few epochs"]
