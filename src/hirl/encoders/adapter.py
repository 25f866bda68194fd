"""A frozen network with a small trained adapter on its pooled features: how a strong encoder is adapted gently.

The adapter is a residual MLP of two layers whose last layer starts at zero: before the first step, the adapted encoder
is the frozen one. The frozen network never changes, batch-norm statistics included, so its features of an image can be
computed once: where a network takes images (B, C, H, W), an adapted one also takes such features as (B, width, 1, 1).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class AdaptedNetwork(nn.Module):
    """Images (B, C, H, W), or the frozen network's features of them (B, width, 1, 1) → adapted features (B, width)."""

    def __init__(self, frozen: nn.Module, width: int, *, hidden: int) -> None:
        super().__init__()
        self.num_features = width
        self.frozen = frozen.requires_grad_(False)
        self.hidden = nn.Linear(width, hidden)
        self.change = nn.Linear(hidden, width)
        nn.init.zeros_(self.change.weight)
        nn.init.zeros_(self.change.bias)
        self.train(self.training)

    def train(self, mode: bool = True) -> AdaptedNetwork:
        """Set the mode of the adapter: the frozen network stays in eval mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        cached = images.shape[1:] == (self.num_features, 1, 1)
        features = images.flatten(1) if cached else self.frozen(images)  # (B, width)
        adapted: Tensor = features + self.change(F.relu(self.hidden(features)))
        return adapted
