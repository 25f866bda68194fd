"""Stochastic depth (Huang et al. 2016) whose draws belong to the images, not to the process that holds them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hirl.methods.parts import ranks


class DropPath(nn.Module):
    """Multiplies each sample's residual branch by a factor handed in before the forward pass: 0 or 1 / (1 − rate)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.factors: Tensor | None = None  # (samples,)

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.factors is None:
            return branch
        return branch * self.factors.to(branch.dtype).view(-1, *(1,) * (branch.ndim - 1))


def own_drop_paths(network: nn.Module) -> list[DropPath]:
    """Puts ours in the place of timm's, which would draw for one rank at a time; returns them in order."""
    from timm.layers.drop import DropPath as TimmDropPath

    paths = []
    for name, module in list(network.named_modules()):
        if isinstance(module, TimmDropPath):
            paths.append(DropPath(module.drop_prob))
            network.set_submodule(name, paths[-1])
    return paths


def draw(paths: Sequence[DropPath], views: int, images: int, device: torch.device) -> None:
    """Draws for `views` × `images` samples (view by view), from torch's global generator.

    The draw is for the images of all ranks, of which each takes its share: ranks whose generators agree drop together
    what one process would.
    """
    if not paths:
        return
    chances = torch.rand(ranks.size() * images, len(paths), views)
    mine = ranks.share(chances).permute(1, 2, 0).flatten(1)  # (paths, views · images)
    rates = torch.tensor([[path.rate] for path in paths])
    factors = ((mine >= rates) / (1 - rates)).to(device)
    for path, row in zip(paths, factors, strict=True):
        path.factors = row
