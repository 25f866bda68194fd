"""Crops: torchvision's distribution of boxes, and its pixels."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from hirl.data.views import View
from hirl.data.views.geometry import cropped, interleaved, resized_crops
from hirl.data.views.parameters import Boxes, boxes, crop_numbers, shorter_side_needed

MODES = {"bilinear": v2.InterpolationMode.BILINEAR, "bicubic": v2.InterpolationMode.BICUBIC}
Mode = Literal["bilinear", "bicubic"]


def drawn(count: int, view: View, height: int, width: int, seed: int = 0) -> Boxes:
    return boxes(crop_numbers(seed, 0, np.arange(count), (view,)), (view,), height, width).view(0)


@pytest.mark.parametrize(("height", "width"), [(60, 80), (200, 50), (32, 32)])
def test_boxes_are_distributed_as_torchvisions(height: int, width: int) -> None:
    count = 3000
    ours = drawn(count, View(size=8, scale=(0.08, 1.0)), height, width)
    theirs = v2.RandomResizedCrop(8, scale=(0.08, 1.0))
    torch.manual_seed(0)
    picture = torch.zeros(3, height, width)
    sampled = [theirs.make_params([picture]) for _ in range(count)]
    for name in ("top", "left", "height", "width"):
        reference = [sample[name] for sample in sampled]
        assert stats.ks_2samp(getattr(ours, name), reference).pvalue > 0.005, name


def test_a_crop_that_never_fits_falls_back_as_torchvisions() -> None:
    view = View(size=8, scale=(1.0, 1.0), ratio=(0.5, 0.6))
    box = drawn(5, view, 40, 100)
    fallback = v2.RandomResizedCrop(8, scale=view.scale, ratio=view.ratio).make_params([torch.zeros(3, 40, 100)])
    for name in ("top", "left", "height", "width"):
        assert (getattr(box, name) == fallback[name]).all()


def test_flips_come_at_their_rate() -> None:
    for rate in (0.0, 0.3, 1.0):
        flips = drawn(4000, View(size=8, flip=rate), 30, 30).flip
        assert abs(flips.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / 4000) + 1e-12


def pictures(count: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, 3, height, width), generator=torch.Generator().manual_seed(4), dtype=torch.uint8
    )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (64, 48, 24), (40, 64, 80)])
def test_both_paths_match_torchvision(height: int, width: int, size: int, interpolation: Mode) -> None:
    view = View(size=size, scale=(0.05, 1.0), interpolation=interpolation)
    images = pictures(24, height, width)
    box = drawn(24, view, height, width)
    batched = torch.empty(24, 3, size, size)
    resized_crops(images, box, size, interpolation, out=batched)
    for row in range(24):
        here = Boxes(box.top[row], box.left[row], box.height[row], box.width[row], box.flip[row])
        crop = [int(side[row]) for side in (box.top, box.left, box.height, box.width)]
        expected = tv.resized_crop(
            images[row], *crop, size=[size, size], interpolation=MODES[interpolation], antialias=True
        )
        if box.flip[row]:
            expected = tv.horizontal_flip(expected)
        assert torch.equal(cropped(interleaved(images[row]), here, view), expected)
        # torchvision rounds to integers after each of its two passes: up to one level each way
        difference = (batched[row] * 255 - expected.float()).abs()
        assert difference.max() < (1.6 if interpolation == "bilinear" else 2.1)
        assert difference.mean() < 0.5


def test_batched_crops_do_not_depend_on_company_or_threads() -> None:
    images = pictures(64, 32, 32)
    box = drawn(64, View(size=32), 32, 32)
    together = torch.empty(64, 3, 32, 32)
    resized_crops(images, box, 32, "bilinear", out=together)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows in (slice(3, 4), slice(0, 32), slice(7, 30)):
                some = Boxes(box.top[rows], box.left[rows], box.height[rows], box.width[rows], box.flip[rows])
                part = torch.empty_like(together[rows])
                resized_crops(images[rows], some, 32, "bilinear", out=part)
                assert torch.equal(part, together[rows])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("height", "width"), [(3000, 2000), (1500, 4000)])
def test_the_side_asked_for_leaves_no_crop_too_small(height: int, width: int) -> None:
    views = (View(size=224, scale=(0.08, 1.0)), View(size=96, scale=(0.05, 0.25)))
    for sample in range(200):
        numbers = crop_numbers(0, 0, np.array([sample]), views)[0]
        factor = max(1.0, min(height, width) / int(shorter_side_needed(numbers, views)))
        box = boxes(numbers, views, round(height / factor), round(width / factor))
        for number, view in enumerate(views):
            assert min(box.height[number], box.width[number]) >= view.size - 1  # a pixel of rounding
