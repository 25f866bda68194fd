"""How images are prepared for an encoder, on which device, and whether the encoder takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hirl.data.loader import EvaluationLoader, check_workers
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.normalisation import Normalisation, choose_normalisation
from hirl.encoders.weights_source import Interpolation
from hirl.features.open_encoder import Encoder
from hirl.features.view_cache import CachedFeatureLoader, CachedViews

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Preprocessing:
    """Images resized and centre-cropped to `size`, then normalised.

    crop: the share of the resized image that the square keeps; None is the rule of `EvaluationLoader`
    """

    size: int
    normalisation: Normalisation
    device: torch.device = CPU
    workers: int | None = None
    interpolation: Interpolation = "bilinear"
    crop: float | None = None

    frozen: CachedViews | None = None  # features of a frozen part of the network, which take the place of images

    def loader(self, images: ImageSet, *, rank: int = 0, world_size: int = 1) -> EvaluationLoader | CachedFeatureLoader:
        if self.frozen is not None:
            return CachedFeatureLoader(self.frozen, device=self.device, rank=rank, world_size=world_size)
        return EvaluationLoader(
            images,
            size=self.size,
            resize=None if self.crop is None else round(self.size / self.crop),
            mean=self.normalisation.mean,
            std=self.normalisation.std,
            interpolation=self.interpolation,
            device=self.device,
            workers=self.workers,
            rank=rank,
            world_size=world_size,
        )


def preprocessing_for(
    encoder: Encoder,
    images: ImageSet,
    *,
    image_size: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    device: torch.device = CPU,
    workers: int | None = None,
    interpolation: Interpolation | None = None,
) -> Preprocessing:
    """Preprocessing for an encoder: its own where known, else the given values, else small images' size or 224 and
    ImageNet's normalisation."""
    check_workers(workers)
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size is {image_size}, but must be at least 1; leave it out for the default")
    size = image_size or encoder.default_size(images)
    normal = choose_normalisation(images, encoder.mean or _tuple(mean), encoder.std or _tuple(std))
    form = encoder.format
    resize = interpolation or ("bilinear" if form is None else form.interpolation)
    return Preprocessing(size, normal, device, workers, resize, None if form is None else form.crop)


def describe(encoder: Encoder, preprocessing: Preprocessing) -> str:
    """The provenance of the encoder and the size images are resized to, in a line."""
    size = preprocessing.size
    return f"Encoder {encoder.name}: {encoder.provenance}; images are resized to {size} × {size} pixels"


def _tuple(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


def find_device(name: str | None) -> torch.device:
    """The named device, checked; by default a GPU if there is one, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    present = ["cpu", *(f"cuda:{place}" for place in range(torch.cuda.device_count()))]
    present += ["mps"] if torch.backends.mps.is_available() else []
    if name not in {*present, *(one.partition(":")[0] for one in present)}:
        raise ValueError(f"device is {name!r}, but must be one that is here: {', '.join(present)}")
    return torch.device(name)


def check_preprocessing(encoder: Encoder, **given: Any) -> None:
    """An encoder is evaluated with the preprocessing it was trained with: another would misjudge it."""
    for name, value in given.items():
        own = getattr(encoder, name)
        value = tuple(value) if isinstance(value, list) else value
        if value is not None and own is not None and value != own:
            raise ValueError(f"{name} is {value}, but {encoder.name} was trained with {own}: leave it out")


@torch.inference_mode()
def check_features(name: str, network: Callable[[Tensor], Any], images: Tensor) -> None:
    """Try a network on two images (2, C, size, size): many take images of one size only."""
    channels, size = images.shape[1], images.shape[-1]
    try:
        features = network(images)
    except (AssertionError, RuntimeError, ValueError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{name} cannot take images of {size} × {size} pixels in {channels} channels: {lines[0].rstrip('.')}; give "
            "its own image_size"
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"{name} must give pooled features of shape (B, width), but gives {shape} for 2 images")
