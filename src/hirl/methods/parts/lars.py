"""LARS as SwAV uses it: SGD with momentum, each weight's step scaled to the weight's own norm.

Yang You, Igor Gitman and Boris Ginsburg. Large Batch Training of Convolutional Networks. 2017, arXiv:1708.03888.

lightly's version does not scale groups without weight decay, unlike SwAV's, and updates the weights one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

TRUST, EPS = 1e-3, 1e-8


class LARS(torch.optim.Optimizer):
    """v ← momentum · v + r (g + λ w), w ← w − lr · v with r = trust · |w| / (|g| + λ |w| + eps), per tensor.

    The ratio is undefined for a weight or gradient of norm 0: the gradient is then used unscaled.
    """

    def __init__(self, params: Iterable[Any], *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in settings.items():
            if value < 0:
                raise ValueError(f"{name} is {value}, but must be at least 0 for LARS")
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("LARS does not support a closure: call backward before step")
        for group in self.param_groups:
            weights: list[Tensor] = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if "velocity" not in self.state[weight]:
                    self.state[weight]["velocity"] = torch.zeros_like(weight)
            velocities = [self.state[weight]["velocity"] for weight in weights]
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, self._directions(weights, group))
            torch._foreach_add_(weights, velocities, alpha=-group["lr"])

    @staticmethod
    def _directions(weights: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """r (g + λ w) per weight."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        decay = group["weight_decay"]
        weight_norms = torch.stack(torch._foreach_norm(weights))
        gradient_norms = torch.stack(torch._foreach_norm(gradients))
        ratios = TRUST * weight_norms / (gradient_norms + decay * weight_norms + EPS)
        # A zero gradient also switches off the decay: 0 · (0 + λ w). A zero weight has nothing to decay.
        ratios = torch.where(gradient_norms == 0, 0.0, torch.where(weight_norms == 0, 1.0, ratios))
        directions = torch._foreach_add(gradients, weights, alpha=decay)
        torch._foreach_mul_(directions, list(ratios.unbind()))
        return list(directions)
