"""The projection head of DINO and iBOT: a three-layer MLP to a bottleneck, then prototypes of unit length.

lightly's head has the same layers, but it uses torch's deprecated weight norm, which cannot be deep-copied, and exposes
the bottleneck only through a private call.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class UnitLinear(nn.Module):
    """A linear layer without bias whose rows are scaled to unit length: weight norm with its gain fixed at 1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(inputs, outputs, bias=False).weight.detach())  # (K, D)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, F.normalize(self.weight, dim=1))


class BottleneckHead(nn.Module):
    """Features (B, inputs) → z⁰ (B, dim) and logits (B, outputs)."""

    def __init__(self, *, inputs: int, hidden: int, dim: int, outputs: int, batch_norm: bool = False) -> None:
        super().__init__()
        norms = [[nn.BatchNorm1d(hidden)] if batch_norm else [] for _ in range(2)]
        self.mlp = nn.Sequential(
            nn.Linear(inputs, hidden),
            *norms[0],
            nn.GELU(),
            nn.Linear(hidden, hidden),
            *norms[1],
            nn.GELU(),
            nn.Linear(hidden, dim),
        )
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last_layer = UnitLinear(dim, outputs)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        z = self.mlp(features)
        return z, self.last_layer(F.normalize(z, dim=1))
