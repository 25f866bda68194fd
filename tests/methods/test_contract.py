"""The contract every method keeps: one set of tests over all of them."""

from __future__ import annotations

import dataclasses
import inspect
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from hirl import SemanticPaths, methods
from hirl.methods.base import Method, Plan
from hirl.train.defaults import small_recipe

from ..small_methods import METHODS, NAMES, missing_recipe, small_arguments


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def method(name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType) -> Method:
    built: Method = run.built(name, small[name], plan)
    return built


def test_a_method_has_a_recipe_for_small_images(name: str) -> None:
    assert small_recipe(METHODS[name]) is not None, missing_recipe(name)


def test_a_step_gives_what_it_should(method: Method, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    output = method(views, run.masks_of(method, plan), 0)
    assert output.loss.shape == ()
    assert torch.isfinite(output.loss)
    given = [output.z0] if output.target_z0 is None else [output.z0, output.target_z0]
    for z in given:
        assert z.shape == (plan.batch_size, method.dim)
        assert z.dtype == torch.float32
    assert [z.requires_grad for z in given] == [True, False][: len(given)]
    assert all(value.shape == () and not value.requires_grad for value in output.logs.values())


def test_mixed_precision_keeps_the_loss_in_single_precision(method: Method, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    losses = []
    for mixed in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            output = method(views, run.masks_of(method, plan), 0)
        assert {output.loss.dtype, output.z0.dtype} == {torch.float32}
        losses.append(float(output.loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    output.loss.backward()


def test_gradient_reaches_all_that_trains_and_nothing_else(method: Method, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    (method(views, run.masks_of(method, plan), 0).loss).backward()
    for key, parameter in method.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), key
    trained = {id(parameter) for group in method.param_groups(method) for parameter in group["params"]}
    assert trained == {id(parameter) for parameter in method.parameters() if parameter.requires_grad}
    assert sum(len(group["params"]) for group in method.param_groups(method)) == len(trained)


def test_heads_train_along(method: Method) -> None:
    """`param_groups` and `optimiser` take modules that are not the method's."""
    first = nn.Linear(method.dim, 4)
    heads = nn.Sequential(first, nn.BatchNorm1d(4))
    optimiser = method.optimiser([*method.param_groups(method), *method.param_groups(heads)])
    before = first.weight.detach().clone()
    for parameter in heads.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    assert not torch.equal(before, first.weight)


def test_heads_are_decayed_like_the_method(method: Method) -> None:
    """Matrices and vectors of HIRL's heads as those of the method itself, which may spare biases and norms."""

    def decays(module: nn.Module) -> dict[bool, set[float]]:
        found: dict[bool, set[float]] = {True: set(), False: set()}
        for group in method.param_groups(module):
            for weight in group["params"]:
                found[weight.ndim > 1].add(group.get("wd_scale", 1.0))
        return found

    heads = SemanticPaths(method.dim, (4, 2), head_layers=3)
    assert decays(heads) == decays(method)


def test_z0_and_its_target_are_what_embed_gives(method: Method, plan: Plan, run: ModuleType) -> None:
    """z⁰ by the trained network, its target by the one that embeds, which may be a slow copy."""
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])  # so that copies differ
    method.eval()
    views = run.random_views(method, plan, seed=9)
    with torch.no_grad():
        output = method(views, run.masks_of(method, plan), 3)
        if output.target_z0 is not None:
            torch.testing.assert_close(output.target_z0, method.embed(views[1]))
        slow = len(method.encoder_copies) > 1
        assert torch.allclose(output.z0, method.embed(views[0]), rtol=1e-3, atol=1e-4) != slow


def test_a_look_at_the_loss_leaves_no_trace(method: Method, plan: Plan, run: ModuleType) -> None:
    """In eval mode forward changes nothing, now or at the next step."""
    before = {key: tensor.clone() for key, tensor in method.state_dict().items()}
    views = run.random_views(method, plan)
    method.eval()
    with torch.no_grad():
        method(views, run.masks_of(method, plan), 0)
    assert run.same_tensors(before, method.state_dict())
    twin = run.built(type(method).__name__, method.arguments, plan)
    for one in (method, twin):
        run.train(one, [run.random_views(method, plan, seed=1)])
    assert run.same_tensors(method.state_dict(), twin.state_dict())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_falls(name: str, seed: int, plan: Plan, run: ModuleType) -> None:
    """It may rise first, until a queue holds keys instead of noise and a centre has found its place."""
    quick = small_arguments(name, momentum=0.9, teacher_momentum=0.9, temperature=0.2)
    method = run.built(name, quick, plan, seed=seed)
    batches = [run.random_views(method, plan, seed % 4) for seed in range(plan.steps)]
    outputs = run.train(method, batches)
    losses = torch.stack([output.loss.detach() for output in outputs])
    assert losses[-6:].mean() < 0.75 * losses.unfold(0, 6, 1).mean(1).max()
    # Images are distinguished: this is not a collapse.
    z0 = F.normalize(outputs[-1].z0.detach(), dim=1)
    assert (z0 @ z0.T).mean() < 0.5


def test_arguments_to_yaml_and_back(name: str, small: dict[str, dict[str, Any]]) -> None:
    kind = getattr(methods, name)
    for method in (kind(), kind(**small[name]), kind(backbone_args={"channels": (8, 8, 16, 16)})):
        again = kind(**yaml.safe_load(yaml.safe_dump(method.arguments)))
        assert again == method
        assert again.arguments == method.arguments
    assert kind() != kind(**small[name])
    parameters = inspect.signature(kind).parameters.values()
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
    assert not list(kind().children())  # the constructor only stores


def test_state_dict_round_trip(method: Method, plan: Plan, run: ModuleType, tmp_path: Path) -> None:
    """Everything a step changes is in it: a copy goes on with the same bits."""
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])
    torch.save(method.state_dict(), tmp_path / "state.pt")
    twin = run.built(type(method).__name__, method.arguments, plan, seed=5)
    twin.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
    more = [run.random_views(method, plan, seed) for seed in range(3, 6)]
    ends = [run.train(one, more, start=3) for one in (method, twin)]
    assert [float(output.loss.detach()) for output in ends[0]] == [float(output.loss.detach()) for output in ends[1]]
    assert run.same_tensors(method.state_dict(), twin.state_dict())


def test_same_bits_for_the_same_seed(name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType) -> None:
    def end(seed: int) -> dict[str, Tensor]:
        method = run.built(name, small[name], plan, seed=seed)
        torch.rand(int(torch.randint(9, ())))  # whatever happened before must not matter
        run.train(method, [run.random_views(method, plan, step) for step in range(3)])
        return dict(method.state_dict())

    assert run.same_tensors(end(0), end(0))
    assert not run.same_tensors(end(0), end(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_encoder_is_a_timm_model(
    name: str, channels: int, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    plan = dataclasses.replace(plan, channels=channels)
    method = run.built(name, small[name], plan)
    run.train(method, [run.random_views(method, plan)])
    assert any(method.encoder is copy for copy in method.encoder_copies)
    plain = timm.create_model(method.backbone, num_classes=0, **method.encoder_args)
    plain.load_state_dict(method.encoder.state_dict(), strict=True)
    images = torch.randn(3, channels, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(plain.eval()(images), method.encoder.eval()(images))


@pytest.mark.parametrize("epochs", [1, 3])
def test_published_schedules_fit_short_runs(name: str, epochs: int) -> None:
    method: Method = getattr(methods, name)()
    method.plan = Plan(epochs=epochs, steps_per_epoch=2, batch_size=64, image_size=224)
    for step in range(method.plan.steps):
        rates = method.rates(step)
        assert 0 <= rates.lr <= method.peak_lr
        assert math.isfinite(rates.weight_decay)


def test_a_misspelt_backbone(name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"'resnet5O' is not the name of a timm model: close matches are .*resnet50"):
        run.built(name, small[name] | {"backbone": "resnet5O"}, plan)


def test_channels_of_the_images_are_not_an_argument(
    name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    with pytest.raises(ValueError, match="may not set in_chans"):
        run.built(name, small[name] | {"backbone_args": {"in_chans": 1}}, plan)


# Two processes and one, on the same global batches. Batch norm is the only place where rows of a batch meet inside a
# network; its groups are counted over the global batch, so that both arrangements normalise the same rows together.


@pytest.fixture(scope="module")
def both(
    plan: Plan, run: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one process got, and each of two."""
    # Without batch norm behind masks, as ranks hide unequally many patches.
    changes: dict[str, Any] = {"drop_path": 0.3, "queue_length": 32, "queue_epoch": 0, "head_batch_norm": False}
    tasks = {name: (name, small_arguments(name, **changes)) for name in NAMES if small_recipe(METHODS[name])}
    found: tuple[dict[str, Any], list[dict[str, Any]]] = run.alone_and_together(
        tasks, plan, tmp_path_factory.mktemp("group")
    )
    return found


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_take_the_steps_of_one(
    name: str, both: tuple[dict[str, Any], list[dict[str, Any]]], run: ModuleType
) -> None:
    assert name in both[0], missing_recipe(name)
    run.check_two_as_one(both[0][name], [rank[name] for rank in both[1]])
