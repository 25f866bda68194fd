"""Loss scaling for 16-mixed: small gradients do not underflow in half precision, and an overflow skips the step.

Fabric's own `unscale_gradients` raises an error for fused optimisers, though torch supports them with gradients that
are already unscaled. Skipping a step is not left to the optimiser either: fused SGD would start its momentum from
uninitialised memory if the first step overflows, as it usually does at the initial scale of 65,536.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hirl.runs.metrics import LOSS_SCALE


class LossScale:
    """Loss scaling of a Fabric with precision 16-mixed; with any other precision nothing is scaled or skipped."""

    def __init__(self, fabric: Fabric, network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self.scaler: torch.amp.GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)
        self.network = network
        self.optimiser = optimiser
        self._before: list[Tensor] = []

    def begin(self) -> None:
        """Before a step's forward pass, save what it changes: the statistics of batch norms and other buffers."""
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
        """Restore what the forward pass changed, and lower the scale. A step that is taken updates the scale itself."""
        assert self.scaler is not None
        for buffer, before in zip(self.network.buffers(), self._before, strict=True):
            buffer.copy_(before)
        self.scaler.update()

    def figures(self) -> dict[str, Tensor]:
        """The scale, as a tensor on the device: `get_scale` would make every step on a GPU wait."""
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
