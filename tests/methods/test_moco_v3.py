"""Each detail of MoCo v3 that a re-implementation may get wrong."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hirl.encoders.backbones import make_backbone
from hirl.methods import MoCoV3
from hirl.methods.base import Plan
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.moco_v3 import contrast, fix_patches
from hirl.methods.parts.mlp import MLP
from hirl.methods.parts.sync_batch_norm import SyncBatchNorm

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}

SMALL: dict[str, Any] = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_args": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "dim": 24,
    "hidden": 48,
    "momentum": 0.9,
    "warmup_epochs": 0.5,
    "lr": 0.03,
}


@pytest.fixture
def method(plan: Plan, run: ModuleType) -> MoCoV3:
    built: MoCoV3 = run.built("MoCoV3", SMALL, plan)
    return built


# The loss


def slow_contrast(queries: Tensor, keys: Tensor, temperature: float, first: int = 0) -> float:
    losses = []
    for place, query in enumerate(queries.tolist()):
        chances = []
        for key in keys.tolist():
            dot = sum(a * b for a, b in zip(query, key, strict=True))
            chances.append(math.exp(dot / math.hypot(*query) / math.hypot(*key) / temperature))
        losses.append(-math.log(chances[first + place] / sum(chances)))
    return 2 * temperature * sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_loss_against_a_slow_one(generator: torch.Generator, temperature: float) -> None:
    queries, keys = (torch.randn(6, 4, generator=generator) for _ in range(2))
    loss, accuracy = contrast(queries, keys, temperature)
    assert float(loss) == pytest.approx(slow_contrast(queries, keys, temperature), rel=1e-5)
    nearest = [int(torch.cosine_similarity(query, keys).argmax()) for query in queries]
    assert float(accuracy) == pytest.approx(sum(i == place for i, place in enumerate(nearest)) / 6)


def test_queries_meet_the_keys_of_all_ranks(generator: torch.Generator, as_rank: Callable[..., None]) -> None:
    queries, keys = (torch.randn(6, 4, generator=generator) for _ in range(2))
    as_rank(1, of=3)
    loss, _ = contrast(queries[2:4], keys, 0.2)
    assert float(loss) == pytest.approx(slow_contrast(queries[2:4], keys, 0.2, first=2), rel=1e-5)


def test_each_view_is_contrasted_with_the_other(method: MoCoV3, plan: Plan, run: ModuleType) -> None:
    """The sum of both, by the predictor of one encoder and the projector of the other, each view normalised alone."""
    run.train(method, [run.random_views(method, plan, seed) for seed in range(2)])
    views = run.random_views(method, plan, seed=7)
    twin = copy.deepcopy(method)
    output = method(views, [None, None], 0)
    z = [twin.query.projector(twin.query.backbone(view)) for view in views]
    keys = [twin.key.projector(twin.key.backbone(view)).detach() for view in views]
    slow = sum(slow_contrast(twin.predictor(z[view]).detach(), keys[1 - view], 0.2) for view in range(2))
    assert float(output.loss.detach()) == pytest.approx(slow, rel=1e-4)
    torch.testing.assert_close(output.z0, z[0])
    torch.testing.assert_close(output.target_z0, keys[1])
    torch.testing.assert_close(dict(method.named_buffers()), dict(twin.named_buffers()))  # running statistics


def test_the_views_share_a_pass_of_each_backbone(method: MoCoV3, plan: Plan, run: ModuleType) -> None:
    shapes: dict[str, list[tuple[int, ...]]] = {"query": [], "key": []}
    for name, network in (("query", method.query), ("key", method.key)):
        network.backbone.register_forward_pre_hook(
            lambda _, inputs, name=name: shapes[name].append(tuple(inputs[0].shape))
        )
    method(run.random_views(method, plan), [None, None], 0)
    assert shapes == {"query": [(32, 3, 32, 32)], "key": [(32, 3, 32, 32)]}


def test_views_are_asymmetric() -> None:
    first, second = MoCoV3().views(224)
    assert (first.size, first.scale, second.scale) == (224, (0.08, 1.0), (0.08, 1.0))
    assert first.blur is not None
    assert second.blur is not None
    assert (first.blur.probability, second.blur.probability) == (1.0, 0.1)
    assert (first.solarise, second.solarise) == (0.0, 0.2)


# The heads


def test_heads_have_batch_norm_everywhere_and_no_affine_part_at_their_end(method: MoCoV3) -> None:
    for head, widths in ((method.query.projector, [32, 48, 48, 24]), (method.predictor, [24, 48, 24])):
        layers = head.layers
        assert isinstance(layers, nn.Sequential)
        hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU] * (len(widths) - 2)
        assert [type(layer) for layer in layers] == [*hidden, nn.Linear, nn.BatchNorm1d]
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        assert [linear[0].in_features, *(layer.out_features for layer in linear)] == widths
        assert all(layer.bias is None for layer in linear)
        norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm1d)]
        assert [norm.affine for norm in norms] == [True] * (len(norms) - 1) + [False]


def test_batch_norm_is_over_all_ranks(plan: Plan, run: ModuleType, as_rank: Callable[..., None]) -> None:
    as_rank(of=2)
    modules = run.built("MoCoV3", SMALL, plan).modules()
    norms = [module for module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert {type(norm) for norm in norms} == {SyncBatchNorm}


def test_outputs_are_centred_over_the_batch() -> None:
    outputs = MLP(6, 20, 5, output_norm=True)(torch.randn(50, 6))
    torch.testing.assert_close(outputs.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.var(0, correction=0), torch.ones(5), atol=1e-2, rtol=0)


# Positions and patches


def slow_position(row: int, column: int, width: int) -> list[float]:
    values = []
    for place in (row, column):
        rates = [10000 ** (-k / (width // 4)) for k in range(width // 4)]
        values += [math.sin(place * rate) for rate in rates] + [math.cos(place * rate) for rate in rates]
    return values


@pytest.mark.parametrize(
    ("args", "rows", "columns"),
    [
        (TINY, 4, 4),
        (TINY | {"patch_size": 4}, 8, 8),
        (TINY | {"img_size": (16, 32)}, 2, 4),
        (TINY | {"reg_tokens": 2}, 4, 4),
        (TINY | {"no_embed_class": True}, 4, 4),
        (TINY | {"img_size": 224, "patch_size": 16}, 14, 14),
    ],
)
def test_positions_are_sines_and_cosines_of_row_and_column(args: dict[str, Any], rows: int, columns: int) -> None:
    backbone = make_backbone("vit_tiny_patch16_224", **args)
    fix_patches(backbone)
    positions = backbone.pos_embed
    assert isinstance(positions, nn.Parameter)
    assert not positions.requires_grad
    prefix = positions.shape[1] - rows * columns
    assert prefix == (0 if args.get("no_embed_class") else 1 + args.get("reg_tokens", 0))
    assert not positions[0, :prefix].any()  # [CLS] has no place
    expected = torch.tensor([slow_position(row, column, 32) for row in range(rows) for column in range(columns)])
    torch.testing.assert_close(positions[0, prefix:].data, expected)


def test_patches_are_a_random_projection_by_fan_in_and_out() -> None:
    backbone = make_backbone("vit_tiny_patch16_224", in_chans=2, **TINY)
    fix_patches(backbone)
    projection = backbone.get_submodule("patch_embed.proj")
    assert isinstance(projection, nn.Conv2d)
    limit = math.sqrt(6 / (2 * 8 * 8 + 32))
    assert 0.98 * limit < float(projection.weight.abs().max()) <= limit
    assert float(projection.weight.std()) == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert projection.bias is not None
    assert not projection.bias.any()
    assert not projection.weight.requires_grad
    assert not projection.bias.requires_grad


def test_blocks_start_by_fan_in_and_out_query_key_and_value_each(method: MoCoV3) -> None:
    backbone = method.query.backbone
    shapes = {"attn.qkv": (32, 32), "attn.proj": (32, 32), "mlp.fc1": (32, 128), "mlp.fc2": (128, 32)}
    for block in range(2):
        for name, fans in shapes.items():
            layer = backbone.get_submodule(f"blocks.{block}.{name}")
            assert isinstance(layer, nn.Linear)
            limit = math.sqrt(6 / sum(fans))
            assert 0.95 * limit < float(layer.weight.detach().abs().max()) <= limit
            assert not layer.bias.any()


def test_positions_and_patches_never_move(method: MoCoV3, plan: Plan, run: ModuleType) -> None:
    names = ("pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias")
    before = {name: method.query.backbone.state_dict()[name].clone() for name in names}
    run.train(method, [run.random_views(method, plan, seed) for seed in range(4)])
    for network in (method.query, method.key):
        after = network.backbone.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in names)
    assert not torch.equal(
        method.query.backbone.state_dict()["cls_token"], method.key.backbone.state_dict()["cls_token"]
    )  # all else did


def test_other_image_sizes_get_resampled_positions(plan: Plan, run: ModuleType) -> None:
    larger = dataclasses.replace(plan, image_size=48)
    method: MoCoV3 = run.built("MoCoV3", SMALL, larger)
    output = method(run.random_views(method, larger), [None, None], 0)
    assert output.z0.shape == (plan.batch_size, method.dim)


# The momentum encoder


def test_momentum_encoder_starts_as_the_query_encoder_without_graph(method: MoCoV3) -> None:
    query = method.query.state_dict()
    assert any(key.startswith("projector.") for key in query)
    assert all(torch.equal(tensor, query[key]) for key, tensor in method.key.state_dict().items())
    assert query.keys() == method.key.state_dict().keys()  # the predictor is the query's alone
    assert not any(weight.requires_grad for weight in method.key.parameters())
    assert method.encoder is method.query.backbone
    assert method.encoder_copies == [method.query.backbone, method.key.backbone]


def test_momentum_encoder_follows_with_the_momentum_of_the_step_it_serves(
    method: MoCoV3, plan: Plan, generator: torch.Generator
) -> None:
    """The next one: the original moves it at the start of the forward pass."""
    for step in (0, plan.steps // 2, plan.steps - 1):
        for parameter in method.query.parameters():  # far from the momentum encoder, so that the share shows
            nn.init.normal_(parameter, generator=generator)
        before = {key: parameter.clone() for key, parameter in method.key.named_parameters()}
        method.after_step(step)
        momentum = 1 - 0.1 * (math.cos(math.pi * (step + 1) / plan.steps) + 1) / 2
        query = dict(method.query.named_parameters())
        for key, parameter in method.key.named_parameters():
            torch.testing.assert_close(parameter, momentum * before[key] + (1 - momentum) * query[key].data)
    assert momentum == 1


# The optimiser


def test_published_settings() -> None:
    method = MoCoV3()
    method.plan = Plan(epochs=400, steps_per_epoch=312, batch_size=4096, image_size=224)
    assert (method.backbone, method.dim, method.hidden) == ("vit_base_patch16_224", 256, 4096)
    assert (method.momentum, method.temperature) == (0.99, 0.2)
    assert method.peak_lr == pytest.approx(1.6e-3)
    assert method.rates(0).lr == 0
    assert method.rates(20 * 312).lr == pytest.approx(0.8e-3)
    assert method.rates(40 * 312).lr == pytest.approx(1.6e-3)
    assert method.rates(130 * 312).lr == pytest.approx(1.6e-3 * (2 + math.sqrt(2)) / 4)  # a cosine
    assert method.rates(220 * 312).lr == pytest.approx(0.8e-3)
    assert method.rates(method.plan.steps).lr == pytest.approx(0)
    assert {method.rates(step).weight_decay for step in (0, method.plan.steps)} == {0.1}
    assert method.outputs is None  # the loss is scaled: ln of what it spreads over means nothing


def test_adamw_decays_every_weight(method: MoCoV3) -> None:
    optimiser = method.optimiser(method.param_groups(method))
    assert isinstance(optimiser, torch.optim.AdamW)
    (group,) = optimiser.param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.999), 0.1)
    trained = [*method.query.parameters(), *method.predictor.parameters()]
    assert len(group["params"]) == len(trained) - 3  # but for positions and patches
    assert group.get("wd_scale", 1) == 1


def test_a_convolutional_stem_is_trained_and_its_positions_are_not(plan: Plan, run: ModuleType) -> None:
    changes = {"backbone": "vit_tiny_r_s16_p8_224", "backbone_args": TINY | {"patch_size": 2}}
    encoder = run.built("MoCoV3", SMALL | changes, plan).encoder
    assert all(weight.requires_grad for weight in encoder.patch_embed.parameters())
    assert not encoder.pos_embed.requires_grad


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"backbone": "resnet18", "backbone_args": None},
            "'resnet18' is not a plain vision transformer with position",
        ),
        ({"backbone_args": TINY | {"pos_embed": "none"}}, "is not a plain vision transformer with position embeddings"),
        ({"backbone_args": TINY | {"embed_dim": 34}}, "tokens of width 34, .* multiple of 4"),
        ({"backbone_args": TINY | {"patch_size": 5}}, "views of 32 pixels do not consist of whole patches of 5 pixels"),
        ({"dim": 0}, "dim is 0, but must be at least 1"),
        ({"hidden": 0}, "hidden is 0, but"),
        ({"momentum": 1.5}, "momentum is 1.5, but must be between 0 and 1"),
        ({"temperature": 0.0}, "temperature is 0.0, but must be above 0"),
    ],
)
def test_what_cannot_be_built(changes: dict[str, Any], message: str, plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match=message):
        run.built("MoCoV3", SMALL | changes, plan)


def test_a_batch_with_nothing_to_contrast(plan: Plan, run: ModuleType) -> None:
    with pytest.raises(ValueError, match="batch_size is 1, but must be at least 2"):
        run.built("MoCoV3", SMALL, dataclasses.replace(plan, batch_size=1))


def test_z0_and_embed_come_from_the_stated_layers(method: MoCoV3, plan: Plan, run: ModuleType) -> None:
    run.train(method, [run.random_views(method, plan, seed) for seed in range(3)])  # so that copies differ
    method.eval()
    views = run.random_views(method, plan, seed=9)
    with torch.no_grad():
        output = method(views, [None] * 2, 3)
        hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
        for z0, network, view in ((output.z0, method.query, views[0]), (output.target_z0, method.key, views[1])):
            layers = network.projector.layers
            assert isinstance(layers, nn.Sequential)
            assert [type(layer) for layer in layers] == [*hidden, *hidden, nn.Linear, nn.BatchNorm1d]
            torch.testing.assert_close(z0, layers(network.backbone(view)))
        torch.testing.assert_close(method.embed(views[1]), output.target_z0)
        assert method.encoder is method.query.backbone


def test_facts() -> None:
    assert MoCoV3.facts == Facts(linear=LinearTraining(lr=3.0, batch_size=1024, epochs=90), cascade_lr=1.6e-4)
