"""LARS against a slow one and lightly's, with the corners where ratios of lengths are not defined."""

from __future__ import annotations

import copy

import pytest
import torch
from lightly.utils import lars as lightly_lars
from torch import Tensor, nn

from hirl.methods.parts.lars import LARS


def weights(generator: torch.Generator) -> list[nn.Parameter]:
    """Of several shapes; the last starts at 0."""
    shapes = [(4, 3), (5,), (2, 3, 3, 3), ()]
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    return [*made, nn.Parameter(torch.zeros(6))]


def take_steps(
    optimiser: torch.optim.Optimizer, parameters: list[nn.Parameter], seed: int, steps: int = 4
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        parameters[1].grad = torch.zeros(5)
        if step == 2:
            parameters[2].grad = None
        optimiser.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_against_slow_ones(generator: torch.Generator, decay: float) -> None:
    ours = weights(generator)
    theirs = [parameter.detach().clone() for parameter in ours]
    velocities = [torch.zeros_like(weight) for weight in theirs]
    optimiser = LARS(ours, lr=2.0, momentum=0.9, weight_decay=decay)
    for step in range(4):
        for place, (parameter, weight) in enumerate(zip(ours, theirs, strict=True)):
            gradient = torch.randn(weight.shape, generator=generator)
            gradient = torch.zeros_like(gradient) if place == 1 else gradient
            parameter.grad = gradient.clone()
            if step == 2 and place == 2:
                parameter.grad = None
                continue
            length, slope = float(weight.norm()), float(gradient.norm())
            direction = gradient
            if length and slope:
                direction = 0.001 * length / (slope + decay * length) * (gradient + decay * weight)
            velocities[place] = 0.9 * velocities[place] + direction
            theirs[place] = weight - 2.0 * velocities[place]
        optimiser.step()
        torch.testing.assert_close([parameter.detach() for parameter in ours], theirs)


def test_steps_are_lightlys_where_weights_decay(generator: torch.Generator) -> None:
    ours = weights(generator)
    theirs = copy.deepcopy(ours)
    a = take_steps(LARS(ours, lr=2.0, momentum=0.9, weight_decay=1e-3), ours, seed=1)
    b = take_steps(lightly_lars.LARS(theirs, lr=2.0, momentum=0.9, weight_decay=1e-3), theirs, seed=1)
    torch.testing.assert_close(a, b)


def test_groups_keep_their_own_rates_and_the_gradient_is_left_alone(generator: torch.Generator) -> None:
    fast, slow = (nn.Parameter(torch.ones(3)) for _ in range(2))
    optimiser = LARS([{"params": [fast]}, {"params": [slow], "lr": 0.1}], lr=1.0, weight_decay=0.5)
    gradient = torch.randn(3, generator=generator)
    for weight in (fast, slow):
        weight.grad = gradient.clone()
    optimiser.step()
    torch.testing.assert_close((1 - fast) / 10, 1 - slow)
    assert torch.equal(fast.grad, gradient)  # type: ignore[arg-type]


def test_velocity_is_part_of_the_state(generator: torch.Generator) -> None:
    ours = weights(generator)
    optimiser = LARS(ours, lr=2.0)
    take_steps(optimiser, ours, seed=1)
    encoder_copies = copy.deepcopy(ours)
    twin = LARS(encoder_copies, lr=1.0)
    twin.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    ends = [take_steps(one, parameters, seed=2) for one, parameters in ((optimiser, ours), (twin, encoder_copies))]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="momentum is -1, but must be at least 0 for LARS"):
        LARS([nn.Parameter(torch.ones(1))], lr=1.0, momentum=-1)
    with pytest.raises(ValueError, match="does not support a closure"):
        LARS([nn.Parameter(torch.ones(1))], lr=1.0).step(lambda: 0.0)
