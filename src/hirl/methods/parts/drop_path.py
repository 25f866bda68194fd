"""Stochastic depth whose draws belong to the images, not to the process that holds them.

Gao Huang, Yu Sun, Zhuang Liu, Daniel Sedra and Kilian Q. Weinberger. Deep Networks with Stochastic Depth. ECCV 2016,
arXiv:1603.09382.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hirl import ranks
from hirl.data.upload import upload


class DropPath(nn.Module):
    """Multiply each sample's residual branch by a factor set before the forward pass: 0 or 1 / (1 − rate)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.factors: Tensor | None = None  # (samples,)

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.factors is None:
            return branch
        return branch * self.factors.to(branch.dtype).view(-1, *(1,) * (branch.ndim - 1))


def replace_drop_paths(network: nn.Module) -> list[DropPath]:
    """Replace timm's drop paths, which would draw per rank, by ours; return them in order."""
    from timm.layers.drop import DropPath as TimmDropPath

    paths = []
    for name, module in list(network.named_modules()):
        if isinstance(module, TimmDropPath):
            paths.append(DropPath(module.drop_prob))
            network.set_submodule(name, paths[-1])
    return paths


def draw(paths: Sequence[DropPath], views: int, images: int, device: torch.device) -> None:
    """Draw factors for `views` × `images` samples (view by view) from torch's global generator.

    The draw covers the images of all ranks, and each rank takes its share: ranks with equal generators together drop
    the same branches as a single process.
    """
    if not paths:
        return
    world = ranks.world()
    chances = torch.rand(world.size * images, len(paths), views)
    set_factors(paths, world.share(chances).permute(1, 2, 0).flatten(1), device)


def set_factors(paths: Sequence[DropPath], chances: Tensor, device: torch.device) -> None:
    """Drop the branches whose chance, uniform in [0, 1), is below their path's rate; `chances` is (paths, samples)."""
    rates = torch.tensor([[path.rate] for path in paths])
    factors = upload((chances >= rates) / (1 - rates), device)
    for path, row in zip(paths, factors, strict=True):
        path.factors = row
