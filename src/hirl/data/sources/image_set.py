"""The common form of all sources: an indexed set of images, with labels at any number of levels or none, and a part
of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from hirl.data.sources.decode import DecodeError, decode
from hirl.data.sources.escape import one_line

LabelNames = tuple[tuple[str, ...], ...]
LARGE_IMAGE_SIZE = 224  # pixels; of training views and evaluation images, unless a set is small


class BadImage(ValueError):  # noqa: N818 - named after the image
    """An image of a set cannot be read; the caller decides whether to stop or to skip it."""

    def __init__(self, index: int, path: str, reason: str) -> None:
        super().__init__(index, path, reason)  # all three, so that it can be pickled
        self.index = index
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        name = one_line(self.path) if Path(self.path).is_file() else f"{self.index} ({one_line(self.path)})"
        return f"Image {name} cannot be read: {one_line(self.reason)}."


@dataclass(kw_only=True, eq=False, repr=False)
class ImageSet(ABC):
    """Images by index. Picklable and cheap to send to worker processes.

    Attributes:
        name: The name of the set in messages.
        labels: (N, levels) int64, column 0 the finest level and the last the coarsest; None if unlabelled.
        label_names: The class names per level in index order; () if unlabelled.
        channels: 3, or 1 for greyscale.
        pixels: (N, C, H, W) uint8 if the set is one array in memory, else None.
        readable: (N,) bool, False for an image in `pixels` that could not be read and has another one's pixels; None if
            `pixels` has no such image, or is None: then an unreadable image is found when it is read.
    """

    name: str
    channels: int = 3
    labels: Tensor | None = None
    label_names: LabelNames = ()
    pixels: Tensor | None = None
    readable: Tensor | None = None
    fingerprint: str | None = field(default=None, init=False)
    """Identifies the content, for sets that are neither pixels in memory nor files; without one nothing is cached."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int, *, shorter: int | None = None) -> Tensor:
        """(C, H, W) uint8, in the decoder's memory layout. Raises BadImage.

        shorter: the number of pixels that the caller needs on the shorter side: a JPEG whose sides divide may then be
        decoded at a half, quarter or eighth of its size, never below that number.
        """

    @property
    def has_files(self) -> bool:
        """Whether each image is a file of its own, to which `path` leads."""
        return False

    @property
    def default_size(self) -> int:
        """The side in pixels of views and evaluation images by default: that of small images in memory, else 224."""
        return LARGE_IMAGE_SIZE if self.pixels is None else int(min(self.pixels.shape[-2:]))

    @property
    def pretrained_size(self) -> int:
        """The side for an encoder trained elsewhere: that of arrays of small images, else 224, even for small files."""
        return self.default_size

    def path(self, index: int) -> str:
        """The origin of an image: its file's path if there is one."""
        return f"{self.name}[{index}]"

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has images 0 to {len(self) - 1}, not {index}")

    def _decode(self, data: bytes, index: int, shorter: int | None) -> Tensor:
        try:
            return decode(data, channels=self.channels, shorter=shorter)
        except DecodeError as error:
            raise BadImage(index, self.path(index), str(error)) from error

    def __repr__(self) -> str:
        classes = " < ".join(str(len(names)) for names in self.label_names)
        return f"{type(self).__name__}({self.name}: {len(self)} images, classes {classes or 'unknown'})"


class Subset(ImageSet):
    """The images at `chosen`, (n,), renumbered in that order."""

    def __init__(self, images: ImageSet, chosen: Tensor) -> None:
        super().__init__(
            name=f"{len(chosen)} images of {images.name}",
            channels=images.channels,
            labels=None if images.labels is None else images.labels[chosen],
            label_names=images.label_names,
            pixels=None if images.pixels is None else images.pixels[chosen],
            readable=None if images.readable is None else images.readable[chosen],
        )
        self._images = images
        self._chosen = chosen.numpy()

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:
        self._check(index)
        try:
            return self._images.read(int(self._chosen[index]), shorter=shorter)
        except BadImage as bad:  # a replacement is searched among these images
            raise BadImage(index, bad.path, bad.reason) from bad

    @property
    def has_files(self) -> bool:
        return self._images.has_files

    @property
    def pretrained_size(self) -> int:
        return self._images.pretrained_size

    def path(self, index: int) -> str:
        return self._images.path(int(self._chosen[index]))
