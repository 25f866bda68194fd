"""The frozen description of a view, one random crop of an image, and of sets of views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hirl.data.views.masks import Mask


def check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}, but a probability must be between 0 and 1")


def check_interpolation(name: str, value: str) -> None:
    if value not in ("bilinear", "bicubic"):
        raise ValueError(f"{name} is {value!r}, but must be 'bilinear' or 'bicubic'")


def _check_range(name: str, bounds: tuple[float, float], *, above: float, upto: float) -> None:
    if len(bounds) != 2 or not above < bounds[0] <= bounds[1] <= upto:
        raise ValueError(f"{name} is {bounds}, but must be (low, high) with {above} < low <= high <= {upto}")


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Colour jitter: four factors in random order, with the strengths of torchvision's ColorJitter."""

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    probability: float = 0.8

    def __post_init__(self) -> None:
        check_probability("Jitter.probability", self.probability)
        for name in ("brightness", "contrast", "saturation"):
            if getattr(self, name) < 0:
                raise ValueError(f"Jitter.{name} is {getattr(self, name)}, but must be at least 0")
        if not 0 <= self.hue <= 0.5:
            raise ValueError(f"Jitter.hue is {self.hue}, but must be between 0 and 0.5 (half the colour circle)")


@dataclass(frozen=True, kw_only=True)
class Blur:
    """Gaussian blur; its standard deviation in pixels is drawn uniformly from `sigma`."""

    probability: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        check_probability("Blur.probability", self.probability)
        _check_range("Blur.sigma", self.sigma, above=0.0, upto=float("inf"))


@dataclass(frozen=True, kw_only=True)
class View:
    """One view: crop, flip, then colours. None or 0 turns an operation off without changing other draws."""

    size: int = 224
    scale: tuple[float, float] = (0.2, 1.0)  # share of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height, drawn on a log scale
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    flip: float = 0.5
    jitter: Jitter | None = None
    grey: float = 0.0
    blur: Blur | None = None
    solarise: float = 0.0
    mask: Mask | None = None
    rand_augment: str | None = None  # timm's name of a policy, such as rand-m9-mstd0.5-inc1; between crop and colours

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"View.size is {self.size}, but must be at least 1 pixel")
        _check_range("View.scale", self.scale, above=0.0, upto=1.0)
        _check_range("View.ratio", self.ratio, above=0.0, upto=float("inf"))
        check_interpolation("View.interpolation", self.interpolation)
        for name in ("flip", "grey", "solarise"):
            check_probability(f"View.{name}", getattr(self, name))
        if self.mask is not None and self.size % self.mask.patch:
            raise ValueError(f"View.size is {self.size}, but must be a multiple of the mask's patch, {self.mask.patch}")


def pair(first: View, second: View | None = None) -> tuple[View, View]:
    """Two global views; without `second`, two draws of the same description."""
    return first, first if second is None else second


def multi_crop(global_views: tuple[View, ...], local: View, count: int) -> tuple[View, ...]:
    """Global views followed by `count` local ones, which are never masked."""
    if count < 0:
        raise ValueError(f"count is {count}, but the number of local views must be at least 0")
    return (*global_views, *(replace(local, mask=None),) * count)
