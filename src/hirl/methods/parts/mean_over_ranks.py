"""The mean over the ranks with its gradient, for losses and norms over the batch of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hirl import ranks


def mean_over_ranks(mine: Tensor) -> Tensor:
    """The mean of the ranks' tensors, all of the same shape; alone, the tensor itself.

    Its gradient is the mean of the ranks' gradients. A loss of such means is the same on every rank, and parameters,
    whose gradients are averaged over the ranks, get the gradient of the loss over all rows. Every rank must call it
    the same number of times and backpropagate through it.
    """
    mean: Tensor = _MeanOverRanks.apply(mine)
    return mean


class _MeanOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:  # noqa: ARG004
        return ranks.world().mean(mine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return ranks.world().mean(gradient)
