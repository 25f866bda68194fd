"""Mean and standard deviation per channel, by which images are normalised: ImageNet's unless others are given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from hirl.data.sources.image_set import ImageSet

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation per channel that normalise images in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and std, (C,) each; copied to a device once."""
        return _on_device(tuple(self.mean), device), _on_device(tuple(self.std), device)


@cache
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def default_normalisation(channels: int) -> Normalisation:
    """ImageNet's mean and std; for greyscale images, their means over the channels."""
    if channels == 1:
        return Normalisation((sum(IMAGENET_MEAN) / 3,), (sum(IMAGENET_STD) / 3,))
    return Normalisation(IMAGENET_MEAN, IMAGENET_STD)


def choose_normalisation(
    images: ImageSet, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None
) -> Normalisation:
    """The given mean and std, or by default ImageNet's."""
    own = default_normalisation(images.channels)
    chosen = Normalisation(own.mean if mean is None else mean, own.std if std is None else std)
    for name, values in (("mean", chosen.mean), ("std", chosen.std)):
        if len(values) != images.channels:
            raise ValueError(f"{name} has {len(values)} values, but {images.name} has {images.channels} channels")
    if min(chosen.std) <= 0:
        raise ValueError(f"std is {chosen.std}, but must be above 0 in every channel")
    return chosen
