"""The gradients of both losses at z⁰, for every method and against a slow reference."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import SemanticPaths
from hirl.methods.base import Method, Plan
from hirl.train.diagnostics import gradient_figures, view_agreement
from hirl.train.joint import Joint

from ..small_methods import NAMES


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


def find_projector(method: Method, views: list[Tensor], masks: list[Tensor | None]) -> str:
    """The first part of a method to give z⁰ of the first view: as the first rows of its first output."""
    first: dict[str, Tensor] = {}  # in the order of the calls

    def note(part: str) -> Any:
        return lambda _module, _arguments, output: first.setdefault(part, output)

    method = copy.deepcopy(method)
    for part, module in method.named_modules():
        if part:
            module.register_forward_hook(note(part))
    z0 = method(views, masks, 0).z0
    given = {part: output for part, output in first.items() if isinstance(output, Tensor)}
    return next(part for part, output in given.items() if torch.equal(output[: len(z0)], z0))


def nudged(method: Method, projector: str, nudge: Tensor) -> None:
    """Add `nudge` (B, D) to z⁰ of the first view where it is made, so that all that is computed from it changes too."""

    def add(_module: nn.Module, _arguments: Any, output: Tensor) -> Tensor:
        handle.remove()  # later calls are for other views, or for patches
        return torch.cat((output[: len(nudge)] + nudge, output[len(nudge) :]))

    handle = method.get_submodule(projector).register_forward_hook(add)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_those_of_a_nudge(
    name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    """The gradients at z⁰ are those of adding something to it."""
    method = run.built(name, small[name], plan)
    paths = SemanticPaths(method.dim, (12, 4), negatives=3)
    paths.refresh(torch.randn(64, method.dim, generator=torch.Generator().manual_seed(0)))
    views, index = run.random_views(method, plan), torch.arange(plan.batch_size)
    masks = [
        None if view.mask is None else view.mask.draw(view.size, 0, 0, index.numpy(), number)
        for number, view in enumerate(method.views(plan.image_size))
    ]
    assert all(mask is None or mask.any() for mask in masks)
    slow = copy.deepcopy(method)
    torch.manual_seed(1)  # as below
    projector = find_projector(method, views, masks)

    joint = Joint(method, paths)
    torch.manual_seed(1)  # drop path, and the order of MoCo v2's keys
    figures = joint(views, masks, index, 0, 0, diagnose=True).diagnostics

    nudge = torch.zeros(plan.batch_size, method.dim, requires_grad=True)
    nudged(slow, projector, nudge)
    torch.manual_seed(1)
    output = slow(views, masks, 0)
    spd = paths(output.z0, index, generator=torch.Generator().manual_seed(0))
    image, path = (torch.autograd.grad(loss, nudge, retain_graph=True)[0] for loss in (output.loss, spd))
    assert float(figures["gradient_image"]) == pytest.approx(float(image.norm()), rel=1e-5)
    assert float(figures["gradient_spd"]) == pytest.approx(float(path.norm()), rel=1e-5)
    cosine = float((image * path).sum() / image.norm() / path.norm())
    assert float(figures["gradient_cosine"]) == pytest.approx(cosine, rel=1e-4, abs=1e-6)

    assert figures.keys() > {"view_agreement", "view_agreement_coarsest"}
    assert joint(views, masks, index, 0, 0).diagnostics == {}
