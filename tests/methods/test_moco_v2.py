"""Each detail of MoCo v2 that a re-implementation may get wrong."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.encoders.backbones import make_backbone
from hirl.methods import MoCoV2
from hirl.methods.base import Plan
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.moco_v2 import info_nce
from hirl.methods.parts.split_batch_norm import SplitBatchNorm2d, split_batch_norm

SMALL: dict[str, Any] = {
    "backbone": "resnet10t",
    "backbone_args": {"channels": [8, 8, 16, 16]},
    "dim": 12,
    "queue_length": 32,
    "momentum": 0.9,
    "bn_splits": 2,
    "lr": 0.3,
}


@pytest.fixture
def method(plan: Plan, run: ModuleType) -> MoCoV2:
    built: MoCoV2 = run.built("MoCoV2", SMALL, plan)
    return built


def slow_info_nce(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float) -> float:
    losses = []
    for query, key in zip(queries.tolist(), keys.tolist(), strict=True):

        def cosine(other: list[float], query: list[float] = query) -> float:
            dot = sum(a * b for a, b in zip(query, other, strict=True))
            return dot / math.hypot(*query) / math.hypot(*other)

        own = math.exp(cosine(key) / temperature)
        others = sum(math.exp(cosine(old) / temperature) for old in queue.tolist())
        losses.append(-math.log(own / (own + others)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.2, 0.07])
def test_loss_against_a_slow_one(generator: torch.Generator, temperature: float) -> None:
    queries, keys, queue = (torch.randn(rows, 6, generator=generator) for rows in (4, 4, 9))
    queue = F.normalize(queue, dim=1)
    loss, accuracy = info_nce(queries, keys, queue, temperature)
    assert float(loss) == pytest.approx(slow_info_nce(queries, keys, queue, temperature), rel=1e-5)
    nearest = [
        int(F.cosine_similarity(queries[i : i + 1], torch.cat((keys[i : i + 1], queue))).argmax()) for i in range(4)
    ]
    assert float(accuracy) == nearest.count(0) / 4


def test_published_settings() -> None:
    method = MoCoV2()
    method.plan = Plan(epochs=200, steps_per_epoch=5005, batch_size=256, image_size=224)
    assert (method.backbone, method.dim, method.queue_length) == ("resnet50", 128, 65536)
    assert (method.momentum, method.temperature, method.sgd_momentum) == (0.999, 0.2, 0.9)
    assert method.peak_lr == 0.03
    assert method.rates(0) == dataclasses.replace(method.rates(0), lr=0.03, weight_decay=1e-4)
    assert method.rates(method.plan.steps // 4).lr == pytest.approx(0.03 * (2 + math.sqrt(2)) / 4)  # a cosine
    assert method.rates(method.plan.steps // 2).lr == pytest.approx(0.015)
    assert method.rates(method.plan.steps - 1).lr < 1e-10
    method.plan = dataclasses.replace(method.plan, batch_size=64)
    assert method.peak_lr == 0.0075


def test_projector_is_as_wide_as_the_backbone_and_has_no_batch_norm(method: MoCoV2) -> None:
    layers = list(method.query.get_submodule("head").modules())
    assert [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)] == [
        (16, 16),
        (16, method.dim),
    ]
    assert not any("Norm" in type(layer).__name__ for layer in layers)


def test_residual_branches_start_open(method: MoCoV2) -> None:
    """timm would start them at 0, which the original's network does not."""
    gain = method.query.get_submodule("backbone.layer1.0.bn2").weight
    assert isinstance(gain, Tensor)
    assert bool((gain == 1).all())


def test_sgd_decays_every_weight(method: MoCoV2) -> None:
    optimiser = method.optimiser(method.param_groups(method))
    assert isinstance(optimiser, torch.optim.SGD)
    (group,) = optimiser.param_groups
    assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.9, 1e-4, False)
    assert len(group["params"]) == len(list(method.query.parameters()))


def test_downstream_gets_the_query_encoder(method: MoCoV2) -> None:
    assert method.encoder is method.query.get_submodule("backbone")


# The queue


def test_queue_takes_the_keys_after_the_loss_oldest_first(method: MoCoV2, plan: Plan, run: ModuleType) -> None:
    optimiser = method.optimiser(method.param_groups(method))
    torch.testing.assert_close(method.queue.norm(dim=1), torch.ones(32))
    for step in range(5):  # 32 places, 16 keys a step: it wraps round
        before = method.queue.clone()
        output = run.take_step(method, optimiser, [run.random_views(method, plan, step)], step)
        loss, _ = info_nce(output.z0, output.target_z0, before, method.temperature)
        assert torch.equal(loss, output.loss)  # the new keys are not part of the loss
        place = slice(0, 16) if step % 2 == 0 else slice(16, 32)
        before[place] = F.normalize(output.target_z0, dim=1)
        torch.testing.assert_close(method.queue, before)


def test_queue_is_part_of_the_state(method: MoCoV2) -> None:
    state = method.state_dict()
    assert "queue" in state
    assert torch.equal(state["queue"], method.queue)


@pytest.mark.parametrize(("length", "fitting"), [(40, 32), (8, 16), (41, 48)])
def test_queue_that_the_batch_does_not_divide(length: int, fitting: int, plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=rf"queue_length is {length}, .* batch of 16 .*: {fitting} fits"):
        run.built("MoCoV2", SMALL | {"queue_length": length}, plan)


# The key encoder


def test_key_encoder_starts_as_the_query_encoder_and_follows_it(method: MoCoV2, plan: Plan, run: ModuleType) -> None:
    start = {key: tensor.clone() for key, tensor in method.key.state_dict().items()}
    assert all(torch.equal(tensor, start[key]) for key, tensor in method.query.state_dict().items())
    run.train(method, [run.random_views(method, plan)])
    moved = dict(method.query.named_parameters())
    for key, parameter in method.key.named_parameters():  # towards the query encoder of after the step
        torch.testing.assert_close(parameter.data, 0.9 * start[key] + 0.1 * moved[key].data)
    statistics = [key for key in start if key.endswith("running_mean")]
    assert any(not torch.equal(method.key.state_dict()[key], start[key]) for key in statistics)  # from its own batches


# Batch norm in groups


@pytest.mark.parametrize("in_one_call", [False, True])
def test_groups_are_normalised_as_on_devices_of_their_own(
    in_one_call: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_one_call:  # as on a GPU
        monkeypatch.setattr(SplitBatchNorm2d, "_group_by_group", SplitBatchNorm2d._in_one_call)
    plain = nn.BatchNorm2d(5)
    nn.init.normal_(plain.weight, generator=generator)
    plain.running_mean = torch.randn(5, generator=generator)
    split = SplitBatchNorm2d(copy.deepcopy(plain), 3)
    devices = [copy.deepcopy(plain) for _ in range(3)]
    images = torch.randn(12, 5, 4, 4, generator=generator)
    ours, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
    expected = torch.cat([device(part) for device, part in zip(devices, theirs.chunk(3), strict=True)])
    result = split(ours)
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(images.shape, generator=generator)
    (result * upstream).sum().backward()
    (expected * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    for parameter in ("weight", "bias"):
        gradients = torch.stack([getattr(device, parameter).grad for device in devices])
        torch.testing.assert_close(getattr(split, parameter).grad, gradients.sum(0))
    for statistic in ("running_mean", "running_var"):
        mean = torch.stack([getattr(device, statistic) for device in devices]).mean(0)
        torch.testing.assert_close(getattr(split, statistic), mean)
    assert split.num_batches_tracked == 1
    plain.load_state_dict(split.state_dict())
    torch.testing.assert_close(split.eval()(images), plain.eval()(images))


@pytest.mark.parametrize(("size", "calls"), [(4, [(2, 40, 4, 4)]), (512, [(2, 5, 512, 512)] * 8)])
def test_a_gpu_normalises_small_images_in_one_call(
    size: int, calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    split = SplitBatchNorm2d(nn.BatchNorm2d(5), 8).to("meta")  # stands in for a GPU
    called: list[tuple[int, ...]] = []
    original = F.batch_norm

    def batch_norm(images: Tensor, *rest: Any) -> Tensor:
        called.append(tuple(images.shape))
        return original(images, *rest)

    monkeypatch.setattr("hirl.methods.parts.split_batch_norm.F.batch_norm", batch_norm)
    images = torch.empty(16, 5, size, size, device="meta").contiguous(memory_format=torch.channels_last)
    result = split(images)
    assert called == calls
    assert result.shape == images.shape
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_splitting_keeps_the_weights_and_reaches_every_batch_norm() -> None:
    network = make_backbone("resnet18", channels=[8, 8, 16, 16])
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    split_batch_norm(network, 2)
    after = network.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert {type(module) for module in network.modules() if isinstance(module, nn.BatchNorm2d)} == {SplitBatchNorm2d}


def test_batch_norm_that_cannot_be_split_says_so() -> None:
    with pytest.raises(ValueError, match="bn_splits is 2, but BatchNormAct2d cannot be split: use bn_splits 1"):
        split_batch_norm(make_backbone("mobilenetv3_small_050"), 2)


def test_keys_are_normalised_in_shuffled_groups(method: MoCoV2, plan: Plan, run: ModuleType) -> None:
    views = run.random_views(method, plan)
    twin = copy.deepcopy(method.key)
    torch.manual_seed(3)
    output = method(views, [None, None], 0)
    torch.manual_seed(3)
    order = torch.randperm(plan.batch_size)
    with torch.no_grad():
        shuffled = torch.empty_like(output.target_z0)
        shuffled[order] = twin(views[1][order])
        in_order = twin(views[1])
    torch.testing.assert_close(output.target_z0, shuffled)
    assert not torch.allclose(output.target_z0, in_order, atol=1e-3)


def test_keys_are_shuffled_over_the_images_of_all_ranks(
    method: MoCoV2, plan: Plan, run: ModuleType, monkeypatch: pytest.MonkeyPatch, as_rank: Callable[..., None]
) -> None:
    images = run.random_views(method, plan)[1]
    embedded: list[Tensor] = []

    def embed(mine: Tensor) -> Tensor:
        embedded.append(mine)
        return torch.zeros(len(mine), method.dim)

    monkeypatch.setattr(method, "embed", embed)
    answers = {"gather": lambda mine: images if mine.ndim == 4 else mine.repeat(2, 1), "broadcast": lambda order: order}
    for rank in range(2):
        as_rank(rank, of=2, **answers)
        torch.manual_seed(3)
        method._keys(images.chunk(2)[rank])
    torch.manual_seed(3)
    assert torch.equal(torch.cat(embedded), images[torch.randperm(plan.batch_size)])


def test_one_group_is_plain_batch_norm(plan: Plan, run: ModuleType) -> None:
    method: MoCoV2 = run.built("MoCoV2", SMALL | {"bn_splits": 1}, plan)
    assert not any(isinstance(module, SplitBatchNorm2d) for module in method.modules())
    views = run.random_views(method, plan)
    twin = copy.deepcopy(method.key)
    torch.testing.assert_close(method(views, [None, None], 0).target_z0, twin(views[1]))


@pytest.mark.parametrize(("splits", "fitting"), [(3, 2), (0, 1), (16, 8), (6, 4)])
def test_groups_that_the_batch_does_not_make(splits: int, fitting: int, plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=rf"bn_splits is {splits}, .* 16 images of the batch .*: {fitting} fits"):
        run.built("MoCoV2", SMALL | {"bn_splits": splits}, plan)


@pytest.mark.parametrize(
    ("changes", "message"), [({"momentum": 1.5}, "momentum is 1.5"), ({"temperature": 0.0}, "above 0")]
)
def test_values_out_of_range(changes: dict[str, float], message: str, plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=message):
        run.built("MoCoV2", SMALL | changes, plan)


def test_z0_and_embed_come_from_the_stated_layers(method: MoCoV2, plan: Plan, run: ModuleType) -> None:
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])  # so that copies differ
    method.eval()
    views = run.random_views(method, plan, seed=9)
    with torch.no_grad():
        output = method(views, [None] * 2, 3)
        for z0, network, view in ((output.z0, method.query, views[0]), (output.target_z0, method.key, views[1])):
            layers = network.get_submodule("head").layers
            assert isinstance(layers, nn.Sequential)
            assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, nn.Linear]
            torch.testing.assert_close(z0, layers(network.get_submodule("backbone")(view)))
        torch.testing.assert_close(method.embed(views[1]), output.target_z0)


def test_parts_of_a_batch_make_one_step(plan: Plan, run: ModuleType) -> None:
    """With batch norm, parts are other groups: the network has none."""
    vit = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    changes = {"bn_splits": 1, "backbone": "vit_tiny_patch16_224", "backbone_args": vit}
    run.check_parts_make_one_step("MoCoV2", SMALL | changes, plan)


@pytest.fixture(scope="module")
def both(
    plan: Plan, run: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one process got, and each of two, by the number of groups."""
    tasks = {str(splits): ("MoCoV2", SMALL | {"bn_splits": splits}) for splits in (1, 2, 4)}
    found: tuple[dict[str, Any], list[dict[str, Any]]] = run.alone_and_together(
        tasks, plan, tmp_path_factory.mktemp("group")
    )
    return found


@pytest.mark.parametrize("splits", [2, 4])
def test_two_processes_form_the_groups_of_one(
    splits: int, both: tuple[dict[str, Any], list[dict[str, Any]]], run: ModuleType
) -> None:
    """One group per rank, or two."""
    run.check_two_as_one(both[0][str(splits)], [rank[str(splits)] for rank in both[1]])


def test_groups_that_ranks_cannot_form_are_refused(both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """One group over two ranks would be another method: synchronised batch norm, which lets keys leak."""
    for rank in both[1]:
        assert "bn_splits is 1, but must be a multiple of the 2 ranks" in rank["1"]["error"]
        assert "2 fits" in rank["1"]["error"]


def test_groups_must_fit_what_a_forward_pass_gets(plan: Plan, run: ModuleType) -> None:
    """Of a batch of 16 in 4 parts, 4 images at a time."""
    parted = dataclasses.replace(plan, accumulate=4)
    with pytest.raises(ValueError, match=r"bn_splits is 4, .* 4 images of a part of the batch .*: 2 fits"):
        run.built("MoCoV2", SMALL | {"bn_splits": 4}, parted)
    run.built("MoCoV2", SMALL | {"bn_splits": 2}, parted)


def test_one_process_is_told_nothing_of_others(plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match="bn_splits") as refused:
        run.built("MoCoV2", SMALL | {"bn_splits": 3}, plan)
    assert "rank" not in str(refused.value)


@pytest.mark.parametrize("splits", [1, 8])
def test_an_adapter_has_no_batch_norm_to_split(
    splits: int, plan: Plan, run: ModuleType, as_rank: Callable[..., None]
) -> None:
    """The frozen network's uses stored statistics, on any number of processes."""
    as_rank(0, of=3)
    adapter = {"backbone_args": SMALL["backbone_args"] | {"adapter": 8}}
    method: MoCoV2 = run.built("MoCoV2", SMALL | adapter | {"bn_splits": splits}, plan)
    assert not any(isinstance(module, SplitBatchNorm2d) for module in method.modules())


def test_facts() -> None:
    linear = LinearTraining(lr=30.0, batch_size=256, epochs=100, milestones=(60, 80), factor=0.1)
    assert MoCoV2.facts == Facts(linear=linear, time=1.0, gradient_views=1)


@pytest.mark.parametrize(
    ("images", "batch_size", "expected"),
    [
        (19_999, 256, {"backbone": "resnet18", "queue_length": 1024, "momentum": 0.99, "temperature": 0.1}),
        (20_000, 128, {"backbone": "resnet50", "queue_length": 1024, "momentum": 0.999, "temperature": 0.2}),
        (5_000_000, 8, {"queue_length": 65536, "bn_splits": 4}),
        (20_000, 20, {"queue_length": 1020, "bn_splits": 5}),  # any batch divides the queue, and is divided by groups
        (20_000, 100, {"queue_length": 1000, "bn_splits": 5}),
        (20_000, 21, {"bn_splits": 7}),
    ],
)
def test_settings_follow_the_number_of_images(images: int, batch_size: int, expected: dict[str, Any]) -> None:
    found = MoCoV2.for_images(images, batch_size).arguments
    assert {name: found[name] for name in expected} == expected
