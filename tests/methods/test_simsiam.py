"""Each detail of SimSiam that a re-implementation may get wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.methods import MoCoV2, SimSiam
from hirl.methods.base import Plan
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.sync_batch_norm import SyncBatchNorm
from hirl.methods.simsiam import prediction_loss, spread

SMALL: dict[str, Any] = {
    "backbone": "resnet10t",
    "backbone_args": {"channels": [8, 8, 16, 16]},
    "dim": 24,
    "predictor_hidden": 6,
    "lr": 0.8,
}


@pytest.fixture
def method(plan: Plan, run: ModuleType) -> SimSiam:
    built: SimSiam = run.built("SimSiam", SMALL, plan)
    return built


def layers_of(head: nn.Module) -> list[nn.Module]:
    assert isinstance(head.layers, nn.Sequential)
    return list(head.layers)


# The loss


def slow_loss(predictions: list[Tensor], outputs: list[Tensor]) -> float:
    terms = []
    for view in range(2):
        for prediction, output in zip(predictions[view].tolist(), outputs[1 - view].tolist(), strict=True):
            dot = sum(a * b for a, b in zip(prediction, output, strict=True))
            terms.append(-dot / math.hypot(*prediction) / math.hypot(*output))
    return sum(terms) / len(terms)


def test_loss_against_a_slow_one(generator: torch.Generator) -> None:
    predictions = [torch.randn(5, 7, generator=generator) for _ in range(2)]
    outputs = [torch.randn(5, 7, generator=generator) for _ in range(2)]
    assert float(prediction_loss(predictions, outputs)) == pytest.approx(slow_loss(predictions, outputs), rel=1e-5)
    assert float(prediction_loss(outputs, [3 * outputs[1], 0.1 * outputs[0]])) == pytest.approx(-1)


def test_targets_get_no_gradient(generator: torch.Generator) -> None:
    predictions = [torch.randn(5, 7, generator=generator, requires_grad=True) for _ in range(2)]
    outputs = [torch.randn(5, 7, generator=generator, requires_grad=True) for _ in range(2)]
    prediction_loss(predictions, outputs).backward()
    assert all(prediction.grad is not None for prediction in predictions)
    assert all(output.grad is None for output in outputs)


def test_a_step_against_the_layers_spelled_out(method: SimSiam, plan: Plan, run: ModuleType) -> None:
    """Loss and the gradient of every weight, with the targets held still: both views predict and are predicted."""
    views = run.random_views(method, plan)
    with torch.no_grad():  # a branch that starts closed would hide what is behind it
        for name, weight in method.named_parameters():
            if "bn2.weight" in name:
                weight.fill_(0.5)
    output = method(views, [None, None], 0)
    output.loss.backward()
    gradients = {name: weight.grad for name, weight in method.named_parameters()}
    method.zero_grad()
    z = [method.network(view) for view in views]
    p = [method.predictor(one) for one in z]
    still = [one.detach() for one in z]
    terms = [F.normalize(p[view], dim=1) * F.normalize(still[1 - view], dim=1) for view in range(2)]
    loss = -sum(term.sum(1).mean() for term in terms) / 2
    assert isinstance(loss, Tensor)
    loss.backward()
    torch.testing.assert_close(output.loss, loss)
    torch.testing.assert_close(gradients, {name: weight.grad for name, weight in method.named_parameters()})


def test_views_are_encoded_once_and_separately(method: SimSiam, plan: Plan, run: ModuleType) -> None:
    shapes: dict[str, list[tuple[int, ...]]] = {"encoder": [], "predictor": []}
    for name, network in (("encoder", method.encoder), ("predictor", method.predictor)):
        network.register_forward_pre_hook(lambda _, inputs, name=name: shapes[name].append(tuple(inputs[0].shape)))
    method(run.random_views(method, plan), [None, None], 0)
    assert shapes == {"encoder": [(16, 3, 32, 32)] * 2, "predictor": [(16, method.dim)] * 2}
    counts = {int(tensor) for key, tensor in method.state_dict().items() if key.endswith("num_batches_tracked")}
    assert counts == {2}  # each view moved the running statistics


def test_z0_and_target_are_the_projectors_outputs(method: SimSiam, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    output = method(views, [None, None], 0)
    torch.testing.assert_close(output.z0, method.network(views[0]))
    torch.testing.assert_close(output.target_z0, method.network(views[1]).detach())


def test_collapse_shows_in_the_spread(method: SimSiam, generator: torch.Generator, plan: Plan, run: ModuleType) -> None:
    assert float(spread(torch.randn(4000, 32, generator=generator))) == pytest.approx(1, abs=0.03)
    one_direction = torch.rand(50, 1, generator=generator) * torch.randn(32, generator=generator)
    assert float(spread(one_direction)) == pytest.approx(0, abs=1e-5)
    views = run.random_views(method, plan)
    output = method(views, [None, None], 0)
    torch.testing.assert_close(output.logs["std"], spread(torch.cat((output.z0.detach(), output.target_z0))))
    assert float(output.logs["std"]) > 0.5
    method.eval()
    same = [views[0][:1].expand(16, -1, -1, -1)] * 2
    assert float(method(same, [None, None], 0).logs["std"]) == pytest.approx(0, abs=1e-5)


# Networks


def test_projector_has_three_layers_and_no_affine_part_at_its_end(method: SimSiam) -> None:
    layers = layers_of(method.network.get_submodule("projector"))
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert [type(layer) for layer in layers] == [*hidden, *hidden, nn.Linear, nn.BatchNorm1d]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(16, 16), (16, 16), (16, method.dim)]
    # A bias before batch norm is taken away again: there is none to train, at the last layer either.
    assert not any(layer.bias is not None and layer.bias.requires_grad for layer in linear)
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm1d)]
    assert [norm.affine for norm in norms] == [True, True, False]


def test_predictor_is_a_bottleneck_with_a_plain_output(method: SimSiam) -> None:
    layers = layers_of(method.predictor)
    assert [type(layer) for layer in layers] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    first, last = layers[0], layers[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    assert (first.in_features, first.out_features) == (method.dim, method.predictor_hidden)
    assert (last.in_features, last.out_features) == (method.predictor_hidden, method.dim)
    assert [name for name, _ in first.named_parameters()] == ["weight"]
    assert [name for name, _ in last.named_parameters()] == ["weight", "bias"]


def test_hidden_layers_have_the_given_width(plan: Plan, run: ModuleType) -> None:
    method: SimSiam = run.built("SimSiam", SMALL | {"hidden": 20}, plan)
    linear = [layer for layer in layers_of(method.network.get_submodule("projector")) if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in linear] == [20, 20, method.dim]


def test_batch_norm_is_over_all_ranks(plan: Plan, run: ModuleType, as_rank: Callable[..., None]) -> None:
    as_rank(of=2)
    modules = run.built("SimSiam", SMALL, plan).modules()
    norms = [module for module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert {type(norm) for norm in norms} == {SyncBatchNorm}


def test_residual_branches_start_closed(method: SimSiam) -> None:
    gains = [weight for name, weight in method.network.named_parameters() if name.endswith("bn2.weight")]
    assert len(gains) == 4
    assert all(bool((gain == 0).all()) for gain in gains)


def test_views_are_those_of_moco_v2() -> None:
    assert SimSiam().views(224) == MoCoV2().views(224)
    assert len(SimSiam().views(224)) == 2


def test_downstream_gets_the_encoder(method: SimSiam) -> None:
    assert method.encoder is method.network.get_submodule("backbone")
    assert method.encoder_copies == [method.encoder]
    assert method.outputs is None


# The optimiser


def test_published_settings() -> None:
    method = SimSiam()
    method.plan = Plan(epochs=200, steps_per_epoch=2502, batch_size=512, image_size=224)
    assert (method.backbone, method.dim, method.hidden, method.predictor_hidden) == ("resnet50", 2048, None, 512)
    assert method.peak_lr == 0.1
    assert method.rates(0) == dataclasses.replace(method.rates(0), lr=0.1, weight_decay=1e-4)
    assert method.rates(method.plan.steps // 4).lr == pytest.approx(0.1 * (2 + math.sqrt(2)) / 4)  # a cosine
    assert method.rates(method.plan.steps // 2).lr == pytest.approx(0.05)
    assert method.rates(method.plan.steps - 1).lr < 1e-10
    method.plan = dataclasses.replace(method.plan, batch_size=64)
    assert method.peak_lr == 0.0125


def test_only_the_predictors_rate_is_fixed(method: SimSiam) -> None:
    falling, fixed = method.param_groups(method)
    assert "fixed_lr" not in falling
    assert fixed["fixed_lr"] is True
    assert {id(weight) for weight in fixed["params"]} == {id(weight) for weight in method.predictor.parameters()}
    assert {id(weight) for weight in falling["params"]} == {id(weight) for weight in method.network.parameters()}
    (heads,) = method.param_groups(nn.Linear(method.dim, 3))  # what trains along falls with the encoder
    assert "fixed_lr" not in heads


def test_sgd_decays_every_weight(method: SimSiam) -> None:
    optimiser = method.optimiser(method.param_groups(method))
    assert isinstance(optimiser, torch.optim.SGD)
    for group in optimiser.param_groups:
        assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.9, 1e-4, False)
        assert group.get("wd_scale", 1) == 1


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim is 0, but must be at least 1"),
        ({"hidden": -4}, "hidden is -4, but"),
        ({"predictor_hidden": 0}, "predictor_hidden is 0, but"),
    ],
)
def test_widths_out_of_range(changes: dict[str, Any], message: str, plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=message):
        run.built("SimSiam", SMALL | changes, plan)


def test_a_batch_too_small_for_batch_norm(plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match="batch_size is 1, but must be at least 2 for batch norm"):
        run.built("SimSiam", SMALL, dataclasses.replace(plan, batch_size=1))


def test_z0_and_embed_come_from_the_stated_layers(method: SimSiam, plan: Plan, run: ModuleType) -> None:
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])  # so that copies differ
    method.eval()
    views = run.random_views(method, plan, seed=9)
    with torch.no_grad():
        output = method(views, [None] * 2, 3)
        projector = nn.Sequential(*layers_of(method.network.get_submodule("projector")))
        hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
        assert [type(layer) for layer in projector] == [*hidden, *hidden, nn.Linear, nn.BatchNorm1d]
        for z0, view in ((output.z0, views[0]), (output.target_z0, views[1])):
            torch.testing.assert_close(z0, projector(method.network.get_submodule("backbone")(view)))
            torch.testing.assert_close(method.embed(view), z0)


def test_facts() -> None:
    assert SimSiam.facts == Facts(linear=LinearTraining(optimiser="lars", lr=0.1, batch_size=4096, epochs=90))
