"""Logistic regression on features in memory, at many learning rates at once, which share every matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hirl.data.views.draws import permutation
from hirl.evals.training.training_settings import fitting_batch
from hirl.methods.base import full_precision

MOMENTUM = 0.9
CHUNK = 8192  # images classified at a time
COLUMNS = 64  # features whose mean and variance are computed at a time


@dataclass(frozen=True)
class Scaling:
    """Scales features to inputs of length about 1, so that a rate means the same at any width and scale."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)

    @classmethod
    def of(cls, features: Tensor, rows: Tensor, *, standardise: bool) -> Scaling:
        """Standardise each feature of these rows, or only divide all of them by one number.

        A few columns or rows are converted at a time, to the same bits as all of them at once.
        """
        width = features.shape[1]
        if standardise:
            parts = features.tensor_split(-(-width // COLUMNS), dim=1)
            found = [torch.std_mean(full_precision(part[rows]), dim=0, correction=0) for part in parts]
            std, mean = (torch.cat(part) for part in zip(*found, strict=True))
            # A constant feature carries no information, whatever it is divided by.
            return cls(mean, torch.where(std > 0, std, 1.0) * math.sqrt(width))
        squares = torch.cat([full_precision(features[some]).square().sum(1) for some in rows.split(CHUNK)])
        length = squares.mean().sqrt().clamp(min=torch.finfo(squares.dtype).tiny)
        return cls(squares.new_zeros(width), length.expand(width))

    def __call__(self, features: Tensor) -> Tensor:
        return (full_precision(features) - self.mean) / self.std


@dataclass(frozen=True)
class Regressions:
    """R fitted regressions on D inputs over C classes."""

    scaling: Scaling
    weights: Tensor  # (D, R · C)
    biases: Tensor  # (R · C,)
    count: int  # R

    def predict(self, features: Tensor, rows: Tensor | None = None) -> Tensor:
        """(N, R): the class that each regression predicts for each image, or for each of some rows."""
        parts = features.split(CHUNK) if rows is None else (features[some] for some in rows.split(CHUNK))
        scores = (torch.addmm(self.biases, self.scaling(part), self.weights) for part in parts)
        return torch.cat([part.unflatten(1, (self.count, -1)).argmax(2) for part in scores])


@torch.no_grad()
def fit(
    features: Tensor,
    labels: Tensor,
    rows: Tensor | None = None,
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

    features (N, D), labels (N,), rates and weight_decays (R,). `rows`: those to learn from, by default all. `progress`
    is called with the number of epochs done. The gradient is short enough to write out: (softmax − truth) times the
    inputs. Features may be in half precision and mapped from a file: they are converted and scaled batch by batch, as a
    copy of ImageNet's would be gigabytes.
    """
    rows = torch.arange(len(features), device=features.device) if rows is None else rows.to(features.device)
    N, D, R = len(rows), features.shape[1], len(rates)
    scaling = Scaling.of(features, rows, standardise=standardise)
    weights, biases = scaling.mean.new_zeros(D, R * classes), scaling.mean.new_zeros(R * classes)
    speeds = torch.zeros_like(weights), torch.zeros_like(biases)
    rate = rates.to(weights).repeat_interleave(classes)  # (R · C,), as the columns of the weights
    decay = weight_decays.to(weights).repeat_interleave(classes)
    batch = min(fitting_batch(batch_size, N), N)
    steps, step = epochs * (N // batch), 0
    for epoch in range(epochs):
        order = torch.from_numpy(permutation(seed, epoch, N)).to(features.device)
        for chosen in rows[order[: N // batch * batch]].split(batch):
            x = scaling(features[chosen])  # (B, D)
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
