"""Transforms of an image with its boxes and masks: flips, sizes and crops, and the published ways to draw them.

Boxes are x1, y1, x2, y2 in continuous coordinates: the pixel (i, j) covers [j, j + 1] × [i, i + 1].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

SMALLEST_SIDE = 1.0  # of a box after a crop, in pixels


@dataclass(frozen=True)
class Sample:
    """One image with its objects."""

    image: Tensor  # (C, H, W) uint8
    boxes: Tensor  # (n, 4) float: x1, y1, x2, y2
    labels: Tensor  # (n,) int64, from 1 on
    masks: Tensor | None = None  # (n, H, W) uint8

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.image.shape[-2], self.image.shape[-1]


def flip(sample: Sample) -> Sample:
    width = sample.size[1]
    boxes = sample.boxes.clone()
    boxes[:, [0, 2]] = width - sample.boxes[:, [2, 0]]
    masks = None if sample.masks is None else sample.masks.flip(-1)
    return replace(sample, image=sample.image.flip(-1), boxes=boxes, masks=masks)


def resize_sample(sample: Sample, height: int, width: int) -> Sample:
    """The image by antialiased bilinear interpolation, masks by the nearest pixel."""
    old_height, old_width = sample.size
    if (old_height, old_width) == (height, width):
        return sample
    image = F.interpolate(sample.image[None].float(), (height, width), mode="bilinear", antialias=True)[0]
    factors = torch.tensor([width / old_width, height / old_height] * 2)
    masks = sample.masks
    if masks is not None:
        rows = _nearest(old_height, height)
        masks = masks[:, rows][:, :, _nearest(old_width, width)]
    return replace(
        sample, image=image.round_().clamp_(0, 255).to(torch.uint8), boxes=sample.boxes * factors, masks=masks
    )


def _nearest(old: int, new: int) -> Tensor:
    """For each new pixel the old one that its centre falls on."""
    return ((torch.arange(new) * 2 + 1) * old).div(2 * new, rounding_mode="floor")


def crop(sample: Sample, top: int, left: int, height: int, width: int) -> Sample:
    """A part of the image; objects with almost nothing left are dropped."""
    rows, columns = slice(top, top + height), slice(left, left + width)
    boxes = sample.boxes - torch.tensor([left, top, left, top])
    boxes[:, [0, 2]] = boxes[:, [0, 2]].clamp(0, width)
    boxes[:, [1, 3]] = boxes[:, [1, 3]].clamp(0, height)
    kept = ((boxes[:, 2:] - boxes[:, :2]) >= SMALLEST_SIDE).all(1)
    masks = None if sample.masks is None else sample.masks[kept][:, rows, columns]
    return Sample(sample.image[:, rows, columns], boxes[kept], sample.labels[kept], masks)


def fitted(size: tuple[int, int], short: int, long: int) -> tuple[int, int]:
    """Height and width at which the shorter side is `short`, or less where the longer one would pass `long`."""
    scale = min(short / min(size), long / max(size))
    height, width = (max(1, int(side * scale + 0.5)) for side in size)
    return height, width


@dataclass(frozen=True)
class Augmentation:
    """Random flips and sizes; with `crops`, half of the images are cut as well, as DETR, and iBOT after it, do."""

    short_sides: tuple[int, ...]  # one of which is drawn
    long_side: int
    crops: bool = False

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        if _draw(2, generator):
            sample = flip(sample)
        if self.crops and _draw(2, generator):
            sample = self._cropped(sample, generator)
        return self._resized(sample, self.short_sides, generator)

    def _resized(self, sample: Sample, sides: tuple[int, ...], generator: Generator) -> Sample:
        return resize_sample(sample, *fitted(sample.size, sides[_draw(len(sides), generator)], self.long_side))

    def _cropped(self, sample: Sample, generator: Generator) -> Sample:
        """At a shorter side of 400, 500 or 600 (where 800 is the largest), a crop of 384 to 600 pixels a side."""
        share = max(self.short_sides) / 800
        sample = self._resized(sample, tuple(max(1, round(side * share)) for side in (400, 500, 600)), generator)
        sides, corners = [], []
        for side in sample.size:
            least, most = (min(side, max(1, round(limit * share))) for limit in (384, 600))
            sides.append(least + _draw(most - least + 1, generator))
            corners.append(_draw(side - sides[-1] + 1, generator))
        return crop(sample, *corners, *sides)


def _draw(count: int, generator: Generator) -> int:
    """One of 0 … count − 1."""
    return int(torch.randint(count, (), generator=generator))
