"""The nearest prototypes over steps: the same as comparing every row with every prototype, with fewer comparisons."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy import nearest as module
from hirl.hierarchy.nearest import NearestSteps, nearest
from hirl.hierarchy.rows import UnitRows

ROWS, DIM, M = 3000, 24, 600


def walk(*, spherical: bool) -> tuple[UnitRows, list[Tensor]]:
    """Rows in groups, and prototypes that move less and less; a few jump far at every step, as drawn anew."""
    generator = torch.Generator().manual_seed(0)
    middle = torch.randn(M, DIM, generator=generator)
    rows = middle[torch.randint(M, (ROWS,), generator=generator)] + 0.4 * torch.randn(ROWS, DIM, generator=generator)
    units = UnitRows(rows)
    steps = [units[torch.randperm(ROWS, generator=generator)[:M]]]
    for size in (0.5, 0.1, 0.03, 0.01, 0.003, 0.0):
        moved = steps[-1] + size * torch.randn(M, DIM, generator=generator) / DIM**0.5
        moved[torch.randperm(M, generator=generator)[:3]] = units[torch.randperm(ROWS, generator=generator)[:3]]
        steps.append(F.normalize(moved, dim=1) if spherical else moved)
    return units, steps


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("spherical", [True, False])
def test_every_step_finds_what_comparing_all_with_all_finds(
    spherical: bool, bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_bfloat16", lambda _: bfloat16)
    monkeypatch.setattr(module, "LEAST_ROUGH", 16)
    rough: list[int] = []
    in_bfloat16 = module._Scores._rough

    def noted(self: module._Scores, some: Tensor, width: int) -> tuple[Tensor, Tensor]:
        rough.append(width)
        return in_bfloat16(self, some, width)

    monkeypatch.setattr(module._Scores, "_rough", noted)
    rows, steps = walk(spherical=spherical)
    compared: list[int] = []
    top_two = module._Scores.top_two

    def counted(self: module._Scores, some: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        compared.append(len(some))
        return top_two(self, some)

    monkeypatch.setattr(module._Scores, "top_two", counted)
    find, before, shares = NearestSteps(rows, spherical=spherical), None, []
    for prototypes in steps:
        compared.clear()
        found = list(find(prototypes, before))
        shares.append(sum(compared) / ROWS)
        expected = (rows[:] @ prototypes.T - (0 if spherical else prototypes.square().sum(1) / 2)).argmax(1)
        before = torch.cat([part.which for part in found])
        assert torch.equal(before, expected)
        distance = torch.cat([part.distance for part in nearest(rows, prototypes, spherical=spherical)])
        assert torch.equal(torch.cat([part.distance for part in found]), distance)
    assert shares[0] == 1  # nothing is known yet
    assert shares[-3] > shares[-2] > shares[-1]
    assert shares[-1] < 0.05  # three prototypes have moved
    assert bool(rough) == bfloat16
    assert any(width < M for width in rough) == bfloat16  # with those alone that have moved far


def test_equal_prototypes_are_told_apart_by_their_number() -> None:
    """As when too few rows differ: no row wanders between prototypes that are the same but for rounding."""
    rows, steps = walk(spherical=True)
    prototypes = steps[0].clone()
    prototypes[M // 2 :] = prototypes[: M // 2]
    find, before = NearestSteps(rows), None
    for _ in range(3):
        before = torch.cat([part.which for part in find(prototypes, before)])
        assert int(before.max()) < M // 2


@pytest.mark.parametrize("length", [1.0, 0.3])
def test_no_score_in_bfloat16_is_further_off_than_its_bound(length: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_bfloat16", lambda _: True)
    units, (prototypes, *_) = walk(spherical=True)
    rows = units[:]
    for spherical in (True, False):
        scores = module._Scores(length * prototypes, module._Workspace(rows.device), spherical=spherical)
        rough, error = (part.clone() for part in scores._rough(rows, M))
        exact = scores._all(rows, M)[:, :M]
        off = (rough[:, :M] - exact).abs()
        rounded = module._rounded_from(rough[:, :M])
        assert (exact <= rounded + error[:, None]).all()
        assert (exact >= -module._rounded_from(-rough[:, :M]) - error[:, None]).all()
        assert 0.1 < float((off / (rounded - rough[:, :M] + error[:, None])).max()) <= 1  # nor is the bound idle


def test_rows_too_close_for_bfloat16_are_compared_in_single_precision_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features with one direction in common, as at the start of a training."""
    monkeypatch.setattr(module, "has_bfloat16", lambda _: True)
    generator = torch.Generator().manual_seed(0)
    rows = UnitRows(torch.randn(ROWS, DIM, generator=generator) + 30 * torch.ones(DIM))
    prototypes = rows[torch.arange(0, ROWS, ROWS // M)]
    find = NearestSteps(rows)
    which = torch.cat([part.which for part in find(prototypes, None)])
    assert not find._workspace.rough
    assert torch.equal(which, (rows[:] @ prototypes.T).argmax(1))


def test_neither_bfloat16_nor_the_cuts_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    units, (prototypes, *_) = walk(spherical=True)
    expected = None
    for bfloat16 in (False, True):
        monkeypatch.setattr(module, "has_bfloat16", lambda _, fast=bfloat16: fast)
        for cuts in ((0, ROWS), (0, ROWS - 127, ROWS), (0, 128, 1000, ROWS)):
            parts = [UnitRows(units[slice(*cut)]) for cut in itertools.pairwise(cuts)]
            found = [part for rows in parts for part in nearest(rows, prototypes)]
            both = torch.cat([part.which for part in found]), torch.cat([part.distance for part in found])
            expected = both if expected is None else expected
            assert all(map(torch.equal, both, expected))
