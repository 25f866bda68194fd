"""The joint objective (Eq. 4) of a method and its semantic paths: one forward pass, one scalar to go back from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hirl.hierarchy.paths import SemanticPaths
from hirl.methods.base import Method


class Losses(NamedTuple):
    """A tuple, for Fabric and DDP look into what a forward pass returns."""

    total: Tensor
    image: Tensor  # detached
    spd: Tensor  # detached; 0 before the first tree and for a baseline
    target_z0: Tensor  # (B, D), detached
    z0: Tensor  # (B, D), detached
    logs: dict[str, Tensor]


class Joint(nn.Module):
    """L_img + L_SPD. Without `paths` it is the method alone: the baseline."""

    def __init__(self, method: Method, paths: SemanticPaths | None, *, assign: str = "stored") -> None:
        super().__init__()
        self.method = method
        self.paths = paths
        self.assign = assign

    def forward(
        self, views: list[Tensor], masks: list[Tensor | None], index: Tensor, step: int, negatives_seed: int
    ) -> Losses:
        output = self.method(views, masks, step)
        spd = output.loss.new_zeros(())
        if self.paths is not None:
            # The draw depends on (seed, step) alone: every rank pushes its images from the same negative paths.
            generator = torch.Generator(device=output.z0.device).manual_seed(negatives_seed)
            where = {"index": index} if self.assign == "stored" else {"target": output.target_z0}
            spd = self.paths(output.z0, **where, generator=generator)
        return Losses(
            total=output.loss + spd,
            image=output.loss.detach(),
            spd=spd.detach(),
            target_z0=output.target_z0.detach(),
            z0=output.z0.detach(),
            logs={name: value.detach() for name, value in output.logs.items()},
        )
