"""LARS (You et al. 2017) as SwAV uses it: SGD with momentum, each weight's step scaled to the weight's own length.

lightly's leaves groups without weight decay unscaled, which SwAV's does not, and goes through the weights one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    """v ← momentum · v + r (g + λ w), w ← w − lr · v with r = trust · |w| / (|g| + λ |w| + eps), per tensor.

    A weight or gradient of length 0 has no such ratio: the gradient is then taken as it is.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        eps: float = 1e-8,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "eps": eps}
        for name, value in settings.items():
            if value < 0:
                raise ValueError(f"{name} is {value}, but LARS takes values of at least 0.")
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("LARS takes no closure: call backward before step.")
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
        """r (g + λ w) of every weight."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        decay = group["weight_decay"]
        lengths = torch.stack(torch._foreach_norm(weights))
        slopes = torch.stack(torch._foreach_norm(gradients))
        ratios = group["trust"] * lengths / (slopes + decay * lengths + group["eps"])
        # Without a gradient there is no decay either: 0 · (0 + λ w). Without a weight there is nothing to decay.
        ratios = torch.where(slopes == 0, 0.0, torch.where(lengths == 0, 1.0, ratios))
        directions = torch._foreach_add(gradients, weights, alpha=decay)
        torch._foreach_mul_(directions, list(ratios.unbind()))
        return list(directions)
