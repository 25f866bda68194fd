"""Each detail of SwAV that a re-implementation may get wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightly.loss import SwaVLoss
from lightly.loss.swav_loss import sinkhorn as lightly_sinkhorn
from torch import Tensor, nn

from hirl.methods import SwAV
from hirl.methods.base import Plan
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.cross_view import cross_view_entropy
from hirl.methods.parts.lars import LARS, TRUST
from hirl.methods.parts.sync_batch_norm import SyncBatchNorm
from hirl.methods.swav import sinkhorn

SMALL: dict[str, Any] = {
    "backbone": "resnet10t",
    "backbone_args": {"channels": [8, 8, 16, 16]},
    "dim": 24,
    "hidden": 32,
    "prototypes": 40,
    "local_crops": 2,
    "queue_length": 32,
    "queue_epoch": 1,
    "frozen_epochs": 0.25,
    "warmup_epochs": 0.5,
    "lr": 60.0,
}


@pytest.fixture
def method(plan: Plan, run: ModuleType) -> SwAV:
    built: SwAV = run.built("SwAV", SMALL, plan)
    return built


def cosines(method: SwAV, views: list[Tensor]) -> Tensor:
    """(V, B, K) of the crops to the prototypes."""
    units = F.normalize(method.network(views), dim=1)
    return F.linear(units, F.normalize(method.prototype_layer.weight, dim=1)).unflatten(0, (len(views), -1))


def test_published_settings() -> None:
    method = SwAV()
    method.plan = Plan(epochs=200, steps_per_epoch=312, batch_size=4096, image_size=224)
    assert (method.backbone, method.dim, method.hidden, method.prototypes) == ("resnet50", 128, 2048, 3000)
    assert (method.temperature, method.epsilon, method.iterations) == (0.1, 0.05, 3)
    assert (method.frozen_epochs, method.queue_length, method.queue_epoch) == (1, 0, 15)
    assert method.peak_lr == pytest.approx(4.8)
    assert method.rates(0).lr == pytest.approx(0.3)
    assert method.rates(5 * 312).lr == pytest.approx((0.3 + 4.8) / 2)
    assert method.rates(10 * 312).lr == pytest.approx(4.8)
    assert method.rates(105 * 312).lr == pytest.approx((4.8 + 4.8e-3) / 2)
    quarter = method.rates(10 * 312 + 190 * 312 // 4).lr  # a cosine: above the line
    assert quarter == pytest.approx(4.8e-3 + (4.8 - 4.8e-3) * (2 + math.sqrt(2)) / 4)
    assert method.rates(method.plan.steps).lr == pytest.approx(4.8e-3)
    assert {method.rates(step).weight_decay for step in (0, 10_000)} == {1e-6}
    assert method.outputs == 3000
    views = method.views(224)
    assert [view.size for view in views] == [224] * 2 + [96] * 6
    assert (views[0].scale, views[2].scale) == ((0.14, 1.0), (0.05, 0.14))
    method.plan = dataclasses.replace(method.plan, batch_size=256)
    assert method.peak_lr == pytest.approx(0.3)


# The loss


@pytest.mark.parametrize("views", [2, 3, 6])
def test_loss_and_gradient_against_slow_ones(generator: torch.Generator, views: int) -> None:
    logits = (3 * torch.randn(views, 5, 7, generator=generator)).requires_grad_()
    targets = torch.randn(2, 5, 7, generator=generator).softmax(-1)
    slow = torch.zeros(())
    for assigned in range(2):
        others = [view for view in range(views) if view != assigned]
        for view in others:
            slow = slow - (targets[assigned] * logits[view].log_softmax(1)).sum(1).mean() / len(others) / 2
    loss = cross_view_entropy(logits, targets)
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(slow, logits))


def test_a_steps_loss_is_lightlys(method: SwAV, plan: Plan, run: ModuleType) -> None:
    """Temperature, unit vectors, targets from the two global crops alone and without gradient."""
    views = run.random_views(method, plan)
    method.eval()
    scores = cosines(method, views)
    theirs = SwaVLoss(temperature=0.1, sinkhorn_iterations=3, sinkhorn_epsilon=0.05)(list(scores[:2]), list(scores[2:]))
    ours = method(views, [None] * len(views), 0).loss
    torch.testing.assert_close(ours, theirs.squeeze())
    weight = next(method.network.parameters())
    torch.testing.assert_close(torch.autograd.grad(ours, weight), torch.autograd.grad(theirs.squeeze(), weight))


def test_assignments_against_slow_ones(generator: torch.Generator) -> None:
    scores = 2 * torch.rand(2, 12, 5, generator=generator) - 1
    for iterations in (1, 3):
        for group, ours in zip(scores, sinkhorn(scores, epsilon=0.05, iterations=iterations), strict=True):
            matrix = (group.double() / 0.05).exp()
            matrix /= matrix.sum()
            for _ in range(iterations):
                matrix = matrix / matrix.sum(0, keepdim=True) / 5
                matrix = matrix / matrix.sum(1, keepdim=True) / 12
            torch.testing.assert_close(ours.double(), 12 * matrix, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(ours, lightly_sinkhorn(group, iterations=iterations), rtol=1e-4, atol=1e-6)


def test_assignments_use_all_prototypes_alike(generator: torch.Generator) -> None:
    """Even where every row is nearest to the same one."""
    scores = 0.1 * torch.rand(1, 60, 5, generator=generator)
    scores[..., 2] += 0.5
    shares = sinkhorn(scores, epsilon=0.05, iterations=200).mean(1)
    torch.testing.assert_close(shares, torch.full((1, 5), 0.2))
    torch.testing.assert_close(sinkhorn(scores, epsilon=0.05, iterations=3).sum(-1), torch.ones(1, 60))


def test_assignments_are_balanced_over_the_rows_of_all_ranks(
    generator: torch.Generator, as_rank: Callable[..., None]
) -> None:
    """With one round the other rank's sums are known beforehand."""
    scores = 2 * torch.rand(2, 12, 5, generator=generator) - 1
    joint = sinkhorn(scores, epsilon=0.05, iterations=1)
    mine, other = scores.chunk(2, dim=1)
    others = ((other - 1) / 0.05).exp().sum(1)
    as_rank(mean=lambda sums: (sums + others) / 2)
    torch.testing.assert_close(sinkhorn(mine, epsilon=0.05, iterations=1), joint[:, :6])


def test_the_farthest_cosines_are_still_numbers() -> None:
    scores = torch.full((1, 4, 3), -1.0)
    scores[0, 0, 0] = 1
    assert bool(sinkhorn(scores, epsilon=0.025, iterations=3).isfinite().all())


# The prototypes


def test_prototypes_have_unit_length_before_every_step_and_no_bias(method: SwAV, plan: Plan, run: ModuleType) -> None:
    ones = torch.ones(method.prototypes)
    torch.testing.assert_close(method.prototype_layer.weight.norm(dim=1), ones)
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])
    torch.testing.assert_close(method.prototype_layer.weight.norm(dim=1), ones)
    assert [name for name, _ in method.prototype_layer.named_parameters()] == ["weight"]


def test_prototypes_keep_still_in_the_first_epoch(plan: Plan, run: ModuleType) -> None:
    """Neither gradient nor decay nor momentum moves them; the network learns meanwhile."""
    method: SwAV = run.built("SwAV", SMALL | {"frozen_epochs": 0.5, "weight_decay": 0.1}, plan)
    optimiser = method.optimiser(method.param_groups(method))
    weight, first = method.prototype_layer.weight, method.prototype_layer.weight.detach().clone()
    network = next(method.network.parameters()).detach().clone()
    for step in range(3):
        run.take_step(method, optimiser, [run.random_views(method, plan, step)], step)
        assert torch.allclose(weight, first, atol=1e-6) == (step < 2)
    assert not torch.equal(next(method.network.parameters()), network)


# The networks


def test_projector_is_two_layers_with_batch_norm_between(method: SwAV) -> None:
    linear = [layer for layer in method.network.head.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(16, 32), (32, 24)]
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in method.network.head.modules()) == 1


def test_batch_norm_of_the_embeddings_is_an_option(plan: Plan, run: ModuleType) -> None:
    assert not SwAV().head_batch_norm
    method = run.built("SwAV", SMALL | {"head_batch_norm": True}, plan)
    z0 = method.network(run.random_views(method, plan)).detach()
    torch.testing.assert_close(z0.mean(0), torch.zeros(24), rtol=0, atol=1e-5)
    torch.testing.assert_close(z0.std(0, correction=0), torch.ones(24), rtol=0, atol=0.01)
    assert isinstance(method.network.head.layers[-1], nn.BatchNorm1d)


def test_crops_of_equal_size_share_a_batch_and_all_share_the_projectors(
    method: SwAV, plan: Plan, run: ModuleType
) -> None:
    shapes: list[tuple[int, ...]] = []
    for module in (method.network.backbone, method.network.head):
        module.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    views = run.random_views(method, plan)
    method(views, [None] * len(views), 0)
    assert shapes == [(32, 3, 32, 32), (32, 3, 16, 16), (64, 16)]


def test_batch_norm_is_over_all_ranks(plan: Plan, run: ModuleType, as_rank: Callable[..., None]) -> None:
    as_rank(of=2)
    modules = run.built("SwAV", SMALL, plan).modules()
    norms = [module for module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert {type(norm) for norm in norms} == {SyncBatchNorm}


def test_residual_branches_start_open(method: SwAV) -> None:
    gain = method.network.backbone.get_submodule("layer1.0.bn2").weight
    assert isinstance(gain, Tensor)
    assert bool((gain == 1).all())


# The queue


@pytest.fixture
def queued(plan: Plan, run: ModuleType) -> SwAV:
    """32 places from epoch 1, the fifth step, on: it is full after the sixth."""
    built: SwAV = run.built("SwAV", SMALL | {"queue_length": 32, "queue_epoch": 1}, plan)
    return built


def test_queue_fills_from_its_epoch_on_oldest_first(queued: SwAV, plan: Plan, run: ModuleType) -> None:
    optimiser = queued.optimiser(queued.param_groups(queued))
    for step in range(8):
        before = queued.queue.clone()
        views = run.random_views(queued, plan, step)
        output = run.take_step(queued, optimiser, [views], step)
        if step >= 4:
            place = slice(0, 16) if step % 2 == 0 else slice(16, 32)
            before[place, 0] = F.normalize(output.z0.detach(), dim=1)
            before[place, 1] = F.normalize(output.target_z0, dim=1)
        torch.testing.assert_close(queued.queue, before)
    state = queued.state_dict()
    assert "queue" in state
    assert torch.equal(state["queue"], queued.queue)


def test_full_queue_is_balanced_along_with_the_batch(queued: SwAV, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(queued, plan)
    queued.eval()
    queued.queue.copy_(F.normalize(torch.randn(queued.queue.shape), dim=-1))
    with torch.no_grad():
        scores = cosines(queued, views)
        old = list((queued.queue @ queued.prototype_layer.weight.T).unbind(1))
        for step in range(8):
            theirs = SwaVLoss()(list(scores[:2]), list(scores[2:]), old if step >= 6 else None)
            torch.testing.assert_close(queued(views, [None] * len(views), step).loss, theirs.squeeze())


def test_queue_goes_on_exactly_after_a_restart(queued: SwAV, plan: Plan, run: ModuleType) -> None:
    run.train(queued, [run.random_views(queued, plan, seed) for seed in range(7)])
    twin: SwAV = run.built("SwAV", queued.arguments, plan, seed=5)
    twin.load_state_dict(queued.state_dict(), strict=True)
    more = [run.random_views(queued, plan, seed) for seed in range(7, 10)]
    ends = [run.train(one, more, start=7) for one in (queued, twin)]
    assert [float(output.loss.detach()) for output in ends[0]] == [float(output.loss.detach()) for output in ends[1]]
    assert torch.equal(queued.queue, twin.queue)


def test_queue_takes_all_parts_of_a_batch(queued: SwAV, plan: Plan, run: ModuleType) -> None:
    optimiser = queued.optimiser(queued.param_groups(queued))
    views = run.random_views(queued, plan)
    parts = [[view.chunk(2)[part] for view in views] for part in range(2)]
    embeddings: list[Tensor] = []
    queued.network.register_forward_hook(lambda _, __, z0: embeddings.append(F.normalize(z0.detach(), dim=1)))
    run.take_step(queued, optimiser, parts, 5)
    torch.testing.assert_close(
        queued.queue[16:], torch.cat([z0[:16].unflatten(0, (2, 8)).transpose(0, 1) for z0 in embeddings])
    )
    assert float(queued.queue[:16].abs().max()) == 0


# The optimiser


def test_lars_scales_and_decays_every_weight(method: SwAV) -> None:
    optimiser = method.optimiser(method.param_groups(method))
    assert isinstance(optimiser, LARS)
    (group,) = optimiser.param_groups
    assert (group["momentum"], group["weight_decay"], TRUST) == (0.9, 1e-6, 1e-3)
    assert len(group["params"]) == len(list(method.parameters()))


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queue_length": 40}, "queue_length is 40, .* batch of 16 images, or 0 for no queue: 32 fits"),
        ({"queue_length": -16}, "queue_length is -16, .* 16 fits"),
        ({"temperature": 0.0}, "temperature is 0.0, but must be above 0"),
        ({"epsilon": 0.01}, "epsilon is 0.01, but must be at least 0.025"),
        ({"iterations": 0}, "iterations is 0, but must be at least 1"),
        ({"prototypes": 1}, "prototypes is 1, but must be at least 2"),
        ({"queue_epoch": -1}, "queue_epoch is -1, but must be at least 0"),
        ({"local_crops": -1}, "local_crops is -1, but must be at least 0"),
        ({"local_size": 0}, "local_size is 0, but must be at least 1"),
    ],
)
def test_what_cannot_be_built(changes: dict[str, Any], message: str, plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=message):
        run.built("SwAV", SMALL | changes, plan)


def test_z0_and_embed_come_from_the_stated_layers(method: SwAV, plan: Plan, run: ModuleType) -> None:
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])  # so that copies differ
    method.eval()
    views = run.random_views(method, plan, seed=9)
    with torch.no_grad():
        output = method(views, [None] * len(views), 3)
        layers = method.network.head.layers
        assert isinstance(layers, nn.Sequential)
        assert [type(layer) for layer in layers] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
        for z0, view in ((output.z0, views[0]), (output.target_z0, views[1])):
            torch.testing.assert_close(z0, layers(method.network.backbone(view)))
            torch.testing.assert_close(method.embed(view), z0)
        assert method.encoder is method.network.backbone


def test_facts() -> None:
    linear = LinearTraining(lr=0.3, weight_decay=1e-6, batch_size=256, epochs=100)
    assert SwAV.facts == Facts(linear=linear, online_assignment=True, gradient_views=4)
