"""A frozen network with a small trained adapter on its pooled features: how a strong encoder is adapted gently.

The adapter is a residual MLP of two layers whose last layer starts at zero: before the first step, the adapted encoder
is the frozen one. The frozen network never changes, batch-norm statistics included, so its features of an image can be
computed once: where a network takes images (B, C, H, W), an adapted one also takes such features as (B, width, 1, 1).

In training, the MLP sees its input with dropout. Without it, it learns the images it is trained on by heart, and pulls
them to their nodes of the tree more than it does other images: KNN of new images among them suffers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks


class AdaptedNetwork(nn.Module):
    """Images (B, C, H, W), or the frozen network's features of them (B, width, 1, 1) → adapted features (B, width)."""

    def __init__(self, frozen: nn.Module, width: int, *, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"adapter_dropout is {dropout}, but must be at least 0 and below 1")
        self.num_features = width
        self.dropout = dropout
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
        adapted: Tensor = features + self.change(F.relu(self.hidden(self._dropped(features))))
        return adapted

    def _dropped(self, features: Tensor) -> Tensor:
        """Dropout whose draw covers the images of all ranks: with equal generators they drop what one process would."""
        if not self.training or self.dropout == 0:
            return features
        world = ranks.world()
        chances = torch.rand(world.size * len(features), self.num_features, device=features.device)
        return features * (world.share(chances) >= self.dropout) / (1 - self.dropout)
