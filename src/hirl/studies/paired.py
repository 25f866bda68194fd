"""Figures over seeds, and differences within pairs of runs that share their seed: mean, standard error and a test."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import mean, stdev

import numpy as np

EXACT = 16  # most pairs whose sign flips are all tried
FLIPS = 1 << EXACT  # drawn for more pairs
ROUNDING = 1e-12  # differences that differ by no more are equal: figures are of the order of 1
FEWEST = 6  # pairs for a sign-flip test: with fewer it cannot fall below 0.06


@dataclass(frozen=True)
class Paired:
    """The mean of the differences; its standard error and the two-sided p-value of a mean of 0, where there are any.

    Pairs with a figure that is NaN or infinite are left out; without any other the difference is NaN.
    """

    pairs: int
    difference: float
    error: float | None
    p: float | None
    test: str | None  # that p comes from: "sign flips" or "t"
    left_out: int = 0  # pairs


def differences_of(base: Mapping[int, float], values: Mapping[int, float]) -> list[float]:
    """Return value − base for every seed that has both."""
    return [values[seed] - base[seed] for seed in values if seed in base]


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation over seeds, without values that are NaN or infinite.

    The mean is NaN if there is no other; a single value has no deviation.
    """
    finite = [float(value) for value in values if isfinite(value)]
    return mean(finite) if finite else nan, stdev(finite) if len(finite) > 1 else None


def paired(differences: Sequence[float]) -> Paired | None:
    """Summarise differences; None without any.

    The test flips the signs of the differences, which assumes nothing about their distribution; below six of them it
    is the t-test, which assumes a normal one.
    """
    if not differences:
        return None
    finite = [difference for difference in differences if isfinite(difference)]
    count, left_out = len(finite), len(differences) - len(finite)
    if count < 2:
        return Paired(count, finite[0] if finite else nan, None, None, None, left_out)
    average = mean(finite)
    equal = max(finite) - min(finite) <= ROUNDING
    error = 0.0 if equal else stdev(finite) / count**0.5
    if count >= FEWEST:
        return Paired(count, average, error, sign_flip(finite), "sign flips", left_out)
    return Paired(count, average, error, t_test(average, error, count), "t", left_out)


def sign_flip(differences: Sequence[float]) -> float:
    """Return the share of all sign flips (or of a fixed random sample of them) with a mean at least as far from 0."""
    values = np.asarray(differences, dtype=np.float64)
    if len(values) <= EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
    else:
        signs = np.random.default_rng(0).choice((1.0, -1.0), (FLIPS, len(values)))
        signs[0] = 1  # the differences themselves count
    means = np.abs(signs @ values)
    return float((means >= abs(values.sum()) * (1 - 1e-12)).mean())


def t_test(average: float, error: float, count: int) -> float | None:
    """Return the p-value of a paired t-test; None if all differences are equal: there is no spread to compare with."""
    from scipy.stats import t

    if error == 0:
        return None
    return float(2 * t.sf(abs(average / error), count - 1))
