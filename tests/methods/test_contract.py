"""The contract every method keeps: one set of tests over all of them."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import subprocess
import sys
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
from hirl.methods import DINO, IBOT, Method, MoCoV2, MoCoV3, SimSiam, SwAV
from hirl.methods.base import Plan

NAMES = [name for name in methods.__all__ if name != "Method"]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def method(name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType) -> Method:
    built: Method = run.built(name, small[name], plan)
    return built


def student_z0(method: Method, images: Tensor) -> Tensor:
    """z⁰ as the paper places it, spelled out layer by layer."""
    match method:
        case MoCoV2():
            layers = method.query.get_submodule("head").layers
            assert isinstance(layers, nn.Sequential)
            assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, nn.Linear]
            z0: Tensor = layers(method.query.get_submodule("backbone")(images))
            return z0
        case DINO() | IBOT():
            return method.student.head.mlp(method.student.backbone(images))
        case SimSiam():
            projector = method.network.get_submodule("projector")
            return mlp_output(projector, method.network.get_submodule("backbone")(images))
        case MoCoV3():
            return mlp_output(method.query.projector, method.query.backbone(images))
        case SwAV():
            layers = method.network.head.layers
            assert isinstance(layers, nn.Sequential)
            assert [type(layer) for layer in layers] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
            return layers(method.network.backbone(images))
    raise AssertionError(f"{method} states no layer for z0")


def mlp_output(projector: nn.Module, features: Tensor) -> Tensor:
    """Of three layers with batch norm, behind the last one too."""
    layers = projector.layers
    assert isinstance(layers, nn.Sequential)
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert [type(layer) for layer in layers] == [*hidden, *hidden, nn.Linear, nn.BatchNorm1d]
    z0: Tensor = layers(features)
    return z0


def embedding(method: Method, images: Tensor) -> Tensor:
    match method:
        case MoCoV2():
            z0: Tensor = method.key.get_submodule("head")(method.key.get_submodule("backbone")(images))
            return z0
        case DINO() | IBOT():
            return method.teacher.head.mlp(method.teacher.backbone(images))
        case SimSiam() | SwAV():
            return student_z0(method, images)
        case MoCoV3():
            return mlp_output(method.key.projector, method.key.backbone(images))
    raise AssertionError(f"{method} states no encoder for embed")


def stated_encoder(method: Method) -> nn.Module:
    match method:
        case MoCoV2():
            return method.query.get_submodule("backbone")
        case DINO() | IBOT():
            return method.teacher.backbone
        case SimSiam():
            return method.network.get_submodule("backbone")
        case MoCoV3():
            return method.query.backbone
        case SwAV():
            return method.network.backbone
    raise AssertionError(f"{method} states no encoder")


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_step_gives_what_it_should(method: Method, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    output = method(views, [None] * len(views), 0)
    assert output.loss.shape == ()
    assert torch.isfinite(output.loss)
    for z in (output.z0, output.target_z0):
        assert z.shape == (plan.batch_size, method.dim)
        assert z.dtype == torch.float32
    assert output.z0.requires_grad
    assert not output.target_z0.requires_grad
    assert all(value.shape == () and not value.requires_grad for value in output.logs.values())


def test_mixed_precision_keeps_the_loss_in_single_precision(method: Method, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    losses = []
    for mixed in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            output = method(views, [None] * len(views), 0)
        assert {output.loss.dtype, output.z0.dtype, output.target_z0.dtype} == {torch.float32}
        losses.append(float(output.loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    output.loss.backward()


def test_gradient_reaches_all_that_trains_and_nothing_else(method: Method, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    (method(views, [None] * len(views), 0).loss).backward()
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
    """Matrices and vectors of HIRL's heads as those of the method itself: DINO and iBOT spare biases and norms."""

    def decays(module: nn.Module) -> dict[bool, set[float]]:
        found: dict[bool, set[float]] = {True: set(), False: set()}
        for group in method.param_groups(module):
            for weight in group["params"]:
                found[weight.ndim > 1].add(group.get("wd_scale", 1.0))
        return found

    heads = SemanticPaths(method.dim, (4, 2), head_layers=3)
    assert decays(heads) == decays(method) == {True: {1.0}, False: {0.0 if isinstance(method, DINO | IBOT) else 1.0}}


def test_z0_and_embed_come_from_the_stated_layers(method: Method, plan: Plan, run: ModuleType) -> None:
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])  # student and teacher differ
    method.eval()
    views = run.random_views(method, plan, seed=9)
    with torch.no_grad():
        output = method(views, [None] * len(views), 3)
        torch.testing.assert_close(output.z0, student_z0(method, views[0]))
        torch.testing.assert_close(output.target_z0, embedding(method, views[1]))
        torch.testing.assert_close(method.embed(views[1]), embedding(method, views[1]))
        if len(method.encoder_copies) > 1:  # a slow copy embeds
            assert not torch.allclose(method.embed(views[0]), student_z0(method, views[0]), atol=1e-4)


def test_a_look_at_the_loss_leaves_no_trace(method: Method, plan: Plan, run: ModuleType) -> None:
    """In eval mode forward changes nothing, now or at the next step."""
    before = {key: tensor.clone() for key, tensor in method.state_dict().items()}
    views = run.random_views(method, plan)
    method.eval()
    with torch.no_grad():
        method(views, [None] * len(views), 0)
    assert same_tensors(before, method.state_dict())
    twin = run.built(type(method).__name__, method.arguments, plan)
    for one in (method, twin):
        run.train(one, [run.random_views(method, plan, seed=1)])
    assert same_tensors(method.state_dict(), twin.state_dict())


# In a few dozen steps DINO's centre must find its place sooner than in a few hundred thousand, and what SwAV queued two
# steps ago is of another network.
HASTY: dict[str, dict[str, Any]] = {
    "DINO": {"centre_momentum": 0.6, "warmup_epochs": 4.0},
    "IBOT": {"centre_momentum": 0.6, "warmup_epochs": 4.0},
    "SwAV": {"queue_length": 0},
}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_falls(name: str, seed: int, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType) -> None:
    """It may rise first, until MoCo's queue holds keys instead of noise and DINO's centre has found its place."""
    method = run.built(name, small[name] | HASTY.get(name, {}), plan, seed=seed)
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
    assert same_tensors(method.state_dict(), twin.state_dict())


def test_same_bits_for_the_same_seed(name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType) -> None:
    def end(seed: int) -> dict[str, Tensor]:
        method = run.built(name, small[name], plan, seed=seed)
        torch.rand(int(torch.randint(9, ())))  # whatever happened before must not matter
        run.train(method, [run.random_views(method, plan, step) for step in range(3)])
        return dict(method.state_dict())

    assert same_tensors(end(0), end(0))
    assert not same_tensors(end(0), end(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_encoder_is_a_timm_model(
    name: str, channels: int, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    plan = dataclasses.replace(plan, channels=channels)
    method = run.built(name, small[name], plan)
    run.train(method, [run.random_views(method, plan)])
    assert method.encoder is stated_encoder(method)
    plain = timm.create_model(method.backbone, num_classes=0, **method.encoder_args)
    plain.load_state_dict(method.encoder.state_dict(), strict=True)
    images = torch.randn(3, channels, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(plain.eval()(images), method.encoder.eval()(images))


def test_parts_of_a_batch_make_one_step(
    name: str, small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType
) -> None:
    """Accumulated gradients: queues and centres take the complete batch of a step, once."""
    if name in ("SimSiam", "MoCoV3", "SwAV"):
        pytest.skip("batch norm, contrast and balanced assignments take each part for a batch of its own")
    ends = []
    for parts in (1, 2):
        arguments = dict(small[name])
        if name == "MoCoV2":  # with batch norm, parts are other groups: take a network without it
            arguments |= {"bn_splits": 1, "backbone": "vit_tiny_patch16_224"}
            arguments["backbone_args"] = small["DINO"]["backbone_args"]
        else:
            arguments["drop_path"] = 0.0
        method = run.built(name, arguments, plan)
        views = run.random_views(method, plan)
        optimiser = method.optimiser(method.param_groups(method))
        for step in range(2):
            chunks = [[view.chunk(parts)[part] for view in views] for part in range(parts)]
            run.take_step(method, optimiser, chunks, step)
        ends.append(method.state_dict())
    torch.testing.assert_close(ends[0], ends[1])


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
TOGETHER: dict[str, tuple[str, dict[str, Any]]] = {
    "MoCoV2, two groups a rank": ("MoCoV2", {"bn_splits": 4}),
    "MoCoV2, one group a rank": ("MoCoV2", {"bn_splits": 2}),
    "DINO": ("DINO", {"drop_path": 0.3}),
    "SimSiam": ("SimSiam", {}),
    "MoCoV3": ("MoCoV3", {}),
    "SwAV": ("SwAV", {"queue_epoch": 0}),
    "IBOT": ("IBOT", {"drop_path": 0.3}),
}


@pytest.fixture(scope="module")
def both(
    small: dict[str, dict[str, Any]], plan: Plan, run: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one process got, and each of two."""
    folder = tmp_path_factory.mktemp("group")
    tasks, alone = {}, {}
    for label, (name, changes) in TOGETHER.items():
        arguments = small[name] | changes
        method = run.built(name, arguments, plan).double()  # where the order of sums hardly shows
        batches = [[view.double() for view in run.random_views(method, plan, seed)] for seed in range(3)]
        tasks[label] = {"name": name, "arguments": arguments, "plan": dataclasses.asdict(plan), "batches": batches}
        outputs = run.train(method, batches)
        losses = torch.stack([output.loss.detach() for output in outputs])
        alone[label] = {"losses": losses, "target_z0": outputs[-1].target_z0, "state": dict(method.state_dict())}
    tasks["odd groups"] = tasks["MoCoV2, one group a rank"] | {"arguments": small["MoCoV2"] | {"bn_splits": 1}}
    torch.save(tasks, folder / "tasks.pt")
    script = Path(__file__).parent / "rank_of_a_run.py"
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), "2", folder],
            stderr=subprocess.PIPE,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    return alone, [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("label", TOGETHER)
def test_two_processes_take_the_steps_of_one(label: str, both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    alone, ranks = both[0][label], [rank[label] for rank in both[1]]
    # Parameters, queue, centre and running statistics: the ranks agree to the bit, …
    assert same_tensors(ranks[0]["state"], ranks[1]["state"])
    # … and with one process up to the order of sums.
    torch.testing.assert_close((ranks[0]["losses"] + ranks[1]["losses"]) / 2, alone["losses"])
    torch.testing.assert_close(torch.cat([rank["target_z0"] for rank in ranks]), alone["target_z0"])
    torch.testing.assert_close(ranks[0]["state"], alone["state"])


def test_groups_that_ranks_cannot_form_are_refused(both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """One group over two ranks would be another method: synchronised batch norm, which lets keys leak."""
    for rank in both[1]:
        assert "bn_splits is 1, but must be a multiple of the 2 ranks" in rank["odd groups"]["error"]
        assert "2 fits" in rank["odd groups"]["error"]
