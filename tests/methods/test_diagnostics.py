"""The gradients of both losses at z⁰, for every method and against a slow reference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hirl import SemanticPaths, methods
from hirl.methods.base import Plan
from hirl.train.diagnostics import gradient_figures, view_agreement
from hirl.train.joint import Joint


def test_gradients_equal_those_of_a_leaf_tensor() -> None:
    """The loss is computed from all views; z⁰ is the part of the first."""
    weight = torch.randn(6, 4, requires_grad=True)
    full = torch.randn(10, 6) @ weight  # (2 · 5, D)
    z0 = full[:5]
    image, spd = full.square().sin().sum(), F.normalize(z0, dim=1).cos().sum()
    figures = gradient_figures(image, spd, z0)
    leaf = full.detach()[:5].requires_grad_()
    (first,) = torch.autograd.grad(leaf.square().sin().sum(), leaf)
    (second,) = torch.autograd.grad(F.normalize(leaf, dim=1).cos().sum(), leaf)
    assert float(figures["gradient_image"]) == pytest.approx(float(first.norm()), rel=1e-5)
    assert float(figures["gradient_spd"]) == pytest.approx(float(second.norm()), rel=1e-5)
    cosine = float((first * second).sum() / first.norm() / second.norm())
    assert float(figures["gradient_cosine"]) == pytest.approx(cosine, rel=1e-4)
    (image + spd).backward()  # the graph is still there
    assert weight.grad is not None


def test_a_loss_that_does_not_pass_through_z0_has_no_figures() -> None:
    weight = torch.randn(6, 4, requires_grad=True)
    z0 = torch.randn(5, 6) @ weight
    assert gradient_figures(weight.square().sum(), z0.sum(), z0) == {}


def test_views_agree_if_their_leaves_do() -> None:
    paths = SemanticPaths(4, (6, 2))
    features = torch.randn(60, 4)
    tree = paths.refresh(features)
    other = torch.cat((features[:10], -features[:10]))
    figures = view_agreement(tree, torch.cat((features[:10], features[:10])), other)
    leaves = tree.assign(features[:10]), tree.assign(-features[:10])
    expected = (10 + sum(int(a == b) for a, b in zip(*leaves, strict=True))) / 20
    assert float(figures["view_agreement"]) == pytest.approx(expected)
    assert float(figures["view_agreement_coarsest"]) >= expected


@pytest.mark.parametrize("name", ["MoCoV2", "SimSiam", "SwAV", "MoCoV3", "DINO", "IBOT"])
def test_every_method_has_them(name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType) -> None:
    torch.manual_seed(0)
    method = getattr(methods, name)(**small[name])
    method.build(plan)
    paths = SemanticPaths(method.dim, (12, 4), negatives=3)
    paths.refresh(torch.randn(64, method.dim))
    views = run.random_views(method, plan)
    masks = [None] * len(views)
    joint = Joint(method, paths)
    index = torch.arange(len(views[0]))
    figures = joint(views, masks, index, 0, 0, diagnose=True)
    assert figures.diagnostics.keys() > {"gradient_image", "gradient_spd", "gradient_cosine", "view_agreement"}
    assert all(float(figures.diagnostics[name]) > 0 for name in ("gradient_image", "gradient_spd"))
    assert -1.001 <= float(figures.diagnostics["gradient_cosine"]) <= 1.001
    assert joint(views, masks, index, 0, 0).diagnostics == {}
