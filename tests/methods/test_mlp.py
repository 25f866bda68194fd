"""Projectors and predictors against lightly's: the same draws, outputs, gradients and running statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lightly.models.modules import heads as lightly_heads
from torch import Tensor, nn

from hirl.methods.parts.mlp import MLP


def lightly_moco_v3(*widths: int) -> nn.Module:
    """lightly's head of MoCo v3 has an affine part at its end, which the official code has not."""
    head = lightly_heads.MoCoProjectionHead(widths[0], widths[1], widths[-1], len(widths) - 1, batch_norm=True)
    assert isinstance(head.layers, nn.Sequential)
    head.layers[-1] = nn.BatchNorm1d(widths[-1], affine=False)
    return head


PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "MoCo v2": (lambda: MLP(12, 20, 8, hidden_norm=False), lambda: lightly_heads.MoCoProjectionHead(12, 20, 8)),
    "SimSiam, projector": (
        lambda: MLP(12, 20, 20, 8, output_norm=True),
        lambda: lightly_heads.SimSiamProjectionHead(12, 20, 8),
    ),
    "SimSiam, predictor": (lambda: MLP(12, 6, 12), lambda: lightly_heads.SimSiamPredictionHead(12, 6, 12)),
    "SwAV": (lambda: MLP(12, 20, 8), lambda: lightly_heads.SwaVProjectionHead(12, 20, 8)),
    "MoCo v3, projector": (lambda: MLP(12, 20, 20, 8, output_norm=True), lambda: lightly_moco_v3(12, 20, 20, 8)),
    "MoCo v3, predictor": (lambda: MLP(8, 20, 8, output_norm=True), lambda: lightly_moco_v3(8, 20, 8)),
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> list[nn.Module]:
    """Our head and lightly's, each drawn from the same seed."""
    heads = []
    for make in PAIRS[request.param]:
        torch.manual_seed(5)
        heads.append(make())
    return heads


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Bit by bit, and in the same order, which is the optimiser's."""
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_weights_are_drawn_like_lightlys(pair: list[nn.Module]) -> None:
    ours, theirs = pair
    equal(ours.state_dict(), theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]


def test_outputs_gradients_and_statistics_are_lightlys(pair: list[nn.Module], generator: torch.Generator) -> None:
    weights = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in pair[0].named_parameters()}
    features = torch.randn(16, next(iter(weights.values())).shape[1], generator=generator)
    found: list[dict[str, Tensor]] = []
    for head in pair:
        head.load_state_dict(weights, strict=False)
        inputs = features.clone().requires_grad_()
        output = head(inputs)
        output.square().mul(torch.arange(output.shape[1])).sum().backward()
        gradients = {name: weight.grad for name, weight in head.named_parameters() if weight.grad is not None}
        assert len(gradients) == len(weights)
        assert inputs.grad is not None
        statistics = {f"after the step, {name}": tensor for name, tensor in head.named_buffers()}
        found.append({"output": output, "features": inputs.grad, **gradients, **statistics})
        found[-1]["output in eval mode"] = head.eval()(features)
    equal(*found)
