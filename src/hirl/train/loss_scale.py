"""The scaled loss of 16-mixed: gradients that are too small for half precision survive, and an overflow skips a step.

Fabric's own `unscale_gradients` refuses fused optimisers, though torch supports them: they take gradients that have
been unscaled before. A step that is skipped is not left to the optimiser either, because fused SGD would start its
momentum from uninitialised memory if the first step overflows, as it usually does at the first scale of 65,536.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hirl.runs.metrics import LOSS_SCALE


class LossScale:
    """Of the precision that a Fabric was launched with; in any other than 16-mixed nothing is scaled or skipped."""

    def __init__(self, fabric: Fabric, network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self.scaler: torch.amp.GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)
        self.network = network
        self.optimiser = optimiser
        self._before: list[Tensor] = []

    def begin(self) -> None:
        """Remember, before the forward pass of a step, what it changes: batch norm's statistics and other buffers."""
        if self.scaler is not None:
            self._before = [buffer.clone() for buffer in self.network.buffers()]

    def unscale(self) -> bool:
        """Divide the gradients of all parts by the scale; return whether they are finite, so that a step can be taken.

        The answer is the same on all processes, since their gradients have been averaged.
        """
        if self.scaler is None:
            return True
        self.scaler.unscale_(self.optimiser)
        overflows = self.scaler._found_inf_per_device(self.optimiser).values()
        return not any(bool(found) for found in overflows)

    @torch.no_grad()
    def skip(self) -> None:
        """Undo what the forward pass changed, and lower the scale; a step that is taken adapts it by itself."""
        assert self.scaler is not None
        for buffer, before in zip(self.network.buffers(), self._before, strict=True):
            buffer.copy_(before)
        self.scaler.update()

    def figures(self) -> dict[str, Tensor]:
        """The scale, as a copy on the device: `get_scale` would make every step on a GPU wait."""
        if self.scaler is None:
            return {}
        scale = self.scaler._get_scale_async()  # None before the first step
        return {LOSS_SCALE.name: torch.tensor(self.scaler.get_scale()) if scale is None else scale.clone()}

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; an empty one, of another precision, leaves the scale at its start."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)
