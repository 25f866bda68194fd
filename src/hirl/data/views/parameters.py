"""The random parameters of views, for a batch at a time.

Each parameter has its own slot in a sample's stream of numbers, so turning an operation off leaves all other draws
unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hirl.data.views import View
from hirl.data.views.draws import Floats, Ints, uniforms
from hirl.seeds import AUGMENT_SLOTS, COLOUR_SLOTS, CROP_SLOTS

TRIES = 10  # of the random resized crop, as in torchvision

Bools = NDArray[np.bool_]


class Colours(NamedTuple):
    """The photometric parameters of each row; all arrays are (rows,)."""

    order: Ints  # permutation of the four jitters, 0..23; -1: no jitter
    factors: Floats  # (rows, 4): brightness, contrast, saturation, hue
    grey: Bools
    sigma: Floats  # 0: not blurred
    solarise: Bools


class Boxes(NamedTuple):
    """Crops in pixels; all arrays are (..., views)."""

    top: Ints
    left: Ints
    height: Ints
    width: Ints
    flip: Bools

    def view(self, number: int) -> Boxes:
        return Boxes._make(values[..., number] for values in self)


def crop_numbers(seed: int, epoch: int, samples: Ints, views: tuple[View, ...]) -> Floats:
    """(samples, views, crop slots)"""
    return uniforms(seed, epoch, samples, range(len(views)), CROP_SLOTS)


def _areas_and_ratios(numbers: Floats, views: tuple[View, ...]) -> tuple[Floats, Floats]:
    scale = np.array([view.scale for view in views])  # (views, 2)
    ratio = np.log([view.ratio for view in views])
    area = scale[:, :1] + (scale[:, 1:] - scale[:, :1]) * numbers[..., :TRIES]
    aspect = np.exp(ratio[:, :1] + (ratio[:, 1:] - ratio[:, :1]) * numbers[..., TRIES : 2 * TRIES])
    return area, aspect  # (..., views, tries)


def boxes(numbers: Floats, views: tuple[View, ...], height: int, width: int) -> Boxes:
    """torchvision's random resized crop of a height × width image, for (samples, views) at once.

    Of ten draws of area and aspect ratio, the first that fits is placed uniformly; if none fits, the largest central
    crop within the bounds of the aspect ratio is used.
    """
    area, aspect = _areas_and_ratios(numbers, views)
    widths = np.rint(np.sqrt(area * aspect * (height * width))).astype(np.int64)
    heights = np.rint(np.sqrt(area / aspect * (height * width))).astype(np.int64)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.argmax(-1)[..., None]
    w, h = (np.take_along_axis(sides, first, -1)[..., 0] for sides in (widths, heights))
    top = np.floor(numbers[..., 2 * TRIES] * (height - h + 1)).astype(np.int64)
    left = np.floor(numbers[..., 2 * TRIES + 1] * (width - w + 1)).astype(np.int64)

    bounds = np.array([view.ratio for view in views])
    image_ratio = width / height
    fallback_w = np.where(image_ratio > bounds[:, 1], np.rint(height * bounds[:, 1]), width).astype(np.int64)
    fallback_h = np.where(image_ratio < bounds[:, 0], np.rint(width / bounds[:, 0]), height).astype(np.int64)
    found = fits.any(-1)
    h, w = np.where(found, h, fallback_h), np.where(found, w, fallback_w)
    top, left = np.where(found, top, (height - h) // 2), np.where(found, left, (width - w) // 2)
    flip = numbers[..., 2 * TRIES + 2] < np.array([view.flip for view in views])
    return Boxes(top, left, h, w, flip)


def shorter_side_needed(numbers: Floats, views: tuple[View, ...]) -> Ints:
    """The pixels that the shorter side of each sample's image needs so that no crop has to be enlarged.

    Which of the ten tries fits depends on the image's shape, which is not yet known: the bound holds for all of them.
    A crop's shorter side is at least sqrt(area · min(ratio, 1/ratio)) of the image's.
    """
    area, aspect = _areas_and_ratios(numbers, views)
    share = np.sqrt(area * np.minimum(aspect, 1 / aspect)).min(-1)  # (samples, views)
    return np.ceil((np.array([view.size for view in views]) / share).max(-1)).astype(np.int64)


def colours(seed: int, epoch: int, samples: Ints, views: tuple[View, ...], which: tuple[int, ...]) -> Colours:
    """The photometric parameters of the views numbered `which`, one view after the other: rows = views × samples."""
    drawn = uniforms(seed, epoch, samples, which, COLOUR_SLOTS).transpose(1, 0, 2)  # (views, samples, slots)
    parts = [_view_colours(views[number], rows) for number, rows in zip(which, drawn, strict=True)]
    return Colours._make(map(np.concatenate, zip(*parts, strict=True)))


def augment_seeds(seed: int, epoch: int, samples: Ints, view: int) -> list[int]:
    """The seed of RandAugment per sample."""
    numbers = uniforms(seed, epoch, samples, (view,), AUGMENT_SLOTS)
    return [int(number * (1 << 53)) for number in numbers.reshape(-1)]


def _view_colours(view: View, numbers: Floats) -> Colours:
    jitter_on, order, *factor, grey, blur_on, sigma, solarise = numbers.T
    jitter, blur = view.jitter, view.blur
    orders = np.full(len(numbers), -1)
    factors = np.tile([1.0, 1.0, 1.0, 0.0], (len(numbers), 1))
    if jitter is not None:
        orders = np.where(jitter_on < jitter.probability, np.floor(order * 24), -1).astype(np.int64)
        for column, strength in enumerate((jitter.brightness, jitter.contrast, jitter.saturation)):
            low = max(0.0, 1 - strength)
            factors[:, column] = low + (1 + strength - low) * factor[column]
        factors[:, 3] = jitter.hue * (2 * factor[3] - 1)
    sigmas = np.zeros(len(numbers))
    if blur is not None:
        low, high = blur.sigma
        sigmas = np.where(blur_on < blur.probability, low + (high - low) * sigma, 0.0)
    return Colours(orders, factors, grey < view.grey, sigmas, solarise < view.solarise)
