"""A loss of means over all ranks trains like the loss over all their rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from hirl.methods.parts.mean_over_ranks import mean_over_ranks


def loss_of(covariance: Tensor) -> Tensor:
    """Not linear, so that the loss over all rows is not the mean of the ranks' losses."""
    return (covariance - torch.eye(len(covariance))).square().sum()


@pytest.mark.usefixtures("two_ranks")
def test_parameters_get_the_gradient_of_the_loss_over_all_rows(generator: torch.Generator) -> None:
    rows = torch.randn(12, 5, generator=generator, dtype=torch.double)
    start = torch.randn(5, 3, generator=generator, dtype=torch.double)
    alone = start.clone().requires_grad_()
    z = rows @ alone
    expected = loss_of(z.T @ z / len(z))
    expected.backward()

    def on_a_rank(mine: Tensor) -> tuple[Tensor, Tensor]:
        weight = start.clone().requires_grad_()
        z = mine @ weight
        loss = loss_of(mean_over_ranks(z.T @ z / len(z)))
        loss.backward()
        assert weight.grad is not None
        return loss.detach(), weight.grad

    with ThreadPoolExecutor(2) as pool:
        losses, gradients = zip(*pool.map(on_a_rank, rows.chunk(2)), strict=True)
    torch.testing.assert_close(losses, (expected.detach(),) * 2)
    torch.testing.assert_close(sum(gradients) / 2, alone.grad)


def test_alone_it_is_the_tensor_itself(generator: torch.Generator) -> None:
    rows = torch.randn(4, 3, generator=generator).requires_grad_()
    mean_over_ranks(rows).square().sum().backward()
    torch.testing.assert_close(rows.grad, 2 * rows.detach())
