"""The numbers behind views: uniform, independent, and the same however they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hirl.data.views.draws import permutation, uniforms


def test_numbers_are_uniform() -> None:
    numbers = uniforms(0, 0, np.arange(2000), range(2), range(0, 10)).ravel()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers, "uniform").pvalue > 0.01


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param((0, 0, 0, 0, 0), (1, 0, 0, 0, 0), id="seed"),
        pytest.param((0, 0, 0, 0, 0), (0, 1, 0, 0, 0), id="epoch"),
        pytest.param((0, 1, 0, 0, 0), (1, 0, 0, 0, 0), id="seed and epoch swapped"),
        pytest.param((0, 0, 0, 0, 0), (0, 0, 1, 0, 0), id="view"),
        pytest.param((0, 0, 0, 0, 0), (0, 0, 0, 1, 0), id="slot"),
        pytest.param((0, 0, 0, 1, 0), (0, 0, 1, 0, 0), id="view and slot swapped"),
        pytest.param((0, 0, 0, 0, 0), (0, 0, 0, 0, 1), id="sample"),
    ],
)
def test_neighbouring_addresses_are_independent(
    one: tuple[int, int, int, int, int], other: tuple[int, int, int, int, int]
) -> None:
    def column(seed: int, epoch: int, view: int, slot: int, first: int) -> np.ndarray:
        return uniforms(seed, epoch, np.arange(first, first + 20_000), [view], range(slot, slot + 1))[:, 0, 0]

    a, b = column(*one), column(*other)
    counts, _, _ = np.histogram2d(a, b, bins=10, range=((0, 1), (0, 1)))
    assert stats.chisquare(counts.ravel()).pvalue > 0.001


def test_a_number_depends_on_its_address_alone() -> None:
    together = uniforms(3, 5, np.arange(50), range(4), range(0, 30))
    part = uniforms(3, 5, np.array([17, 4]), [2], range(11, 13))
    np.testing.assert_array_equal(part[:, 0], together[[17, 4], 2, 11:13])


def test_orders_are_permutations_that_differ_between_epochs_and_seeds() -> None:
    orders = [permutation(0, 0, 500), permutation(0, 1, 500), permutation(1, 0, 500)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(500))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(orders[a], orders[b])[0, 1]) < 0.15
    np.testing.assert_array_equal(orders[0], permutation(0, 0, 500))


def test_large_seeds_are_taken() -> None:
    assert uniforms(2**62, 2**40, np.array([2**40]), [0], range(0, 1)).shape == (1, 1, 1)
