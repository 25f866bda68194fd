"""Sets of small equal-sized images read into memory once, so that views are made in batches without workers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from hirl.data.sources.arrays import ArrayImages
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.opening import open_images
from hirl.data.sources.skipped import Skipped, read_or_replace

LARGEST_SIDE = 128  # pixels; above this, reading in workers is as fast
LARGEST_SET = 4 << 30  # bytes


class ImagesInMemory(ArrayImages):
    """Images read from another set, with the paths of that set."""

    def __init__(self, images: ImageSet, pixels: Tensor, *, readable: Tensor | None = None) -> None:
        super().__init__(name=images.name, pixels=pixels, labels=images.labels, label_names=images.label_names)
        self.readable = readable
        self._images = images

    @property
    def has_files(self) -> bool:
        return self._images.has_files

    @property
    def pretrained_size(self) -> int:
        return self._images.pretrained_size

    def path(self, index: int) -> str:
        return self._images.path(index)


def in_memory(images: ImageSet, *, strict: bool = False, skipped: Skipped | None = None) -> ImageSet:
    """The same images as one array if they are small, of equal size and fit into memory; else the set itself.

    An unreadable image is replaced by the next readable one and recorded in `skipped` and in `readable` of the set that
    is returned; with `strict` it is raised.
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
    readable = torch.ones(len(images), dtype=torch.bool)
    console = Console(stderr=True)
    title = f"Reading {len(images):,} small images into memory"
    for index in track(range(len(images)), title, console=console, transient=True, disable=not console.is_terminal):
        image, actual = read_or_replace(images, index, skipped=skipped, strict=strict)
        readable[index] = actual == index
        if image.shape != first.shape:
            return images
        pixels[index] = image
    return ImagesInMemory(images, pixels, readable=None if readable.all() else readable)


def open_in_memory(source: Any, *, split: str | None = None, channels: int = 3) -> ImageSet:
    """`open_images`, read by `in_memory`; a warning reports unreadable images, which `readable` marks."""
    skipped = Skipped()
    images = in_memory(open_images(source, split=split, channels=channels), skipped=skipped)
    if len(skipped):
        first = next(iter(skipped))
        warnings.warn(
            f"{len(skipped)} of the images of {images.name} could not be read; the first: {first}", stacklevel=2
        )
    return images
