"""Logistic regression on features in memory, at many learning rates at once, which share every matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hirl.data.views.draws import permutation
from hirl.evals.settings import fitting_batch

MOMENTUM = 0.9
CHUNK = 8192  # images classified at a time


@dataclass(frozen=True)
class Scaling:
    """Scales features to inputs of length about 1, so that a rate means the same at any width and scale."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)

    @classmethod
    def of(cls, features: Tensor, *, standardise: bool) -> Scaling:
        """Standardise each feature, or only divide all of them by one number."""
        width = features.shape[1]
        if standardise:
            std, mean = torch.std_mean(features, dim=0, correction=0)
            # A constant feature carries no information, whatever it is divided by.
            return cls(mean, torch.where(std > 0, std, 1.0) * math.sqrt(width))
        length = features.square().sum(1).mean().sqrt().clamp(min=torch.finfo(features.dtype).tiny)
        return cls(torch.zeros_like(features[0]), length.expand(width))

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


@dataclass(frozen=True)
class Regressions:
    """R fitted regressions on D inputs over C classes."""

    scaling: Scaling
    weights: Tensor  # (D, R · C)
    biases: Tensor  # (R · C,)
    count: int  # R

    def predict(self, features: Tensor) -> Tensor:
        """(N, R): the class that each regression predicts for each image."""
        parts = [torch.addmm(self.biases, self.scaling(rows), self.weights) for rows in features.split(CHUNK)]
        return torch.cat([part.unflatten(1, (self.count, -1)).argmax(2) for part in parts])


@torch.no_grad()
def fit(
    features: Tensor,
    labels: Tensor,
    *,
    classes: int,
    rates: Tensor,
    weight_decays: Tensor,
    epochs: int,
    batch_size: int,
    standardise: bool,
    seed: int,
    progress: Callable[[int], None] = lambda _epochs: None,
) -> Regressions:
    """SGD with momentum from zero, the rate falling by half a cosine to 0, the r-th at rates[r] and weight_decays[r].

    features (N, D), labels (N,), rates and weight_decays (R,). `progress` is called with the number of epochs done. The
    gradient is short enough to write out: (softmax − truth) times the inputs.
    """
    N, D = features.shape
    R = len(rates)
    scaling = Scaling.of(features, standardise=standardise)
    inputs = scaling(features)
    weights, biases = features.new_zeros(D, R * classes), features.new_zeros(R * classes)
    speeds = torch.zeros_like(weights), torch.zeros_like(biases)
    rate = rates.to(features).repeat_interleave(classes)  # (R · C,), as the columns of the weights
    decay = weight_decays.to(features).repeat_interleave(classes)
    batch = min(fitting_batch(batch_size, N), N)
    steps, step = epochs * (N // batch), 0
    for epoch in range(epochs):
        order = torch.from_numpy(permutation(seed, epoch, N)).to(features.device)
        for chosen in order[: N // batch * batch].split(batch):
            x = inputs[chosen]  # (B, D)
            gap = torch.addmm(biases, x, weights).view(batch, R, classes).softmax(2)
            gap[torch.arange(batch, device=gap.device), :, labels[chosen]] -= 1
            gap = gap.view(batch, R * classes) / batch
            speeds[0].mul_(MOMENTUM).addmm_(x.T, gap).addcmul_(weights, decay)
            speeds[1].mul_(MOMENTUM).add_(gap.sum(0))
            now = rate * ((1 + math.cos(math.pi * step / steps)) / 2)
            weights.addcmul_(speeds[0], now, value=-1)
            biases.addcmul_(speeds[1], now, value=-1)
            step += 1
        progress(epoch + 1)
    return Regressions(scaling, weights, biases, R)
