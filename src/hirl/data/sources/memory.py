"""A set of small equal-sized images read into memory once, so that views are made in whole batches without workers."""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.data.sources.arrays import ArrayImages
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.skipped import Skipped, read_or_replace

LARGEST_SIDE = 128  # above it reading in workers is as fast
LARGEST_SET = 4 << 30  # bytes


class ImagesInMemory(ArrayImages):
    """Images that were read from elsewhere and still know from where."""

    def __init__(self, images: ImageSet, pixels: Tensor) -> None:
        super().__init__(name=images.name, pixels=pixels, labels=images.labels, label_names=images.label_names)
        self._images = images

    def path(self, index: int) -> str:
        return self._images.path(index)


def in_memory(images: ImageSet, *, strict: bool = False, skipped: Skipped | None = None) -> ImageSet:
    """The same images as one array if they are small, of one size and fit; else as they came.

    An unreadable image is replaced by the one that stands in for it, and recorded; `strict` makes it an error.
    """
    if images.pixels is not None:
        return images
    skipped = Skipped() if skipped is None else skipped
    first, _ = read_or_replace(images, 0, skipped=skipped, strict=strict)
    if max(first.shape[-2:]) > LARGEST_SIDE or first.numel() * len(images) > LARGEST_SET:
        return images
    from rich.console import Console
    from rich.progress import track

    pixels = torch.empty((len(images), *first.shape), dtype=torch.uint8)
    console = Console(stderr=True)
    words = f"Reading {len(images):,} small images into memory"
    for index in track(range(len(images)), words, console=console, transient=True, disable=not console.is_terminal):
        image, _ = read_or_replace(images, index, skipped=skipped, strict=strict)
        if image.shape != first.shape:
            return images
        pixels[index] = image
    return ImagesInMemory(images, pixels)
