"""Pieces of the published augmentations that several methods share."""

from __future__ import annotations

from hirl.data.views import Blur, Jitter, View

# BYOL's colour jitter (Grill et al., Bootstrap Your Own Latent, NeurIPS 2020, arXiv:2006.07733), which MoCo v3, DINO
# and iBOT adopted: half of MoCo v2's strength on saturation.
SOFT_JITTER = Jitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, probability=0.8)
SMALLEST_BLURRED = 64  # pixels


def blur_unless_small(image_size: int, probability: float) -> Blur | None:
    """The blur of all six methods at 224 pixels: a standard deviation of .1 to 2 pixels. None below 64 pixels.

    Two pixels of blur would erase a 32 px image; SimSiam's published CIFAR recipe leaves blur out for this reason.
    """
    return Blur(probability=probability, sigma=(0.1, 2.0)) if image_size >= SMALLEST_BLURRED else None


def local_crop_size(image_size: int, multiple: int) -> int:
    """The side of a local crop: the published 96 at 224 pixels, i.e. 3/7, rounded to a multiple of `multiple`."""
    return max(1, round(image_size * 3 / 7 / multiple)) * multiple


def moco_view(image_size: int) -> View:
    """The augmentation of MoCo v2, which SimSiam adopted."""
    return View(size=image_size, scale=(0.2, 1.0), jitter=Jitter(), grey=0.2, blur=blur_unless_small(image_size, 0.5))
