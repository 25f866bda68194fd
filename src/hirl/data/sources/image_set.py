"""What every source becomes: an indexed set of images, with labels at any number of levels or none."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from hirl.data.sources.decode import DecodeError, decode
from hirl.data.sources.escape import one_line

LabelNames = tuple[tuple[str, ...], ...]


class BadImage(ValueError):  # noqa: N818 - it names the image, the way it is caught
    """One image of a set cannot be read; the caller decides whether that ends the run or is skipped."""

    def __init__(self, index: int, path: str, reason: str) -> None:
        super().__init__(index, path, reason)  # all three, so that it travels between processes whole
        self.index = index
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"Image {self.index} ({one_line(self.path)}) cannot be read: {one_line(self.reason)}."


class ImageSet(ABC):
    """Images by index. Picklable and cheap to hand to worker processes.

    name         what the set is called in messages
    labels       (N, levels) int64, column 0 the finest level and the last the coarsest; None: unlabelled
    label_names  per level the class names in index order; () when unlabelled
    channels     3, or 1 for grey
    pixels       (N, C, H, W) uint8 when the whole set is one array in memory, else None
    """

    fingerprint: str | None = None
    """Identifies the content, for sets that are neither pixels in memory nor files; without one nothing is cached."""

    def __init__(
        self,
        *,
        name: str,
        channels: int = 3,
        labels: Tensor | None = None,
        label_names: LabelNames = (),
        pixels: Tensor | None = None,
    ) -> None:
        self.name = name
        self.channels = channels
        self.labels = labels
        self.label_names = label_names
        self.pixels = pixels

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int, *, shorter: int | None = None) -> Tensor:
        """(C, H, W) uint8; the memory layout is the decoder's. Raises BadImage.

        With `shorter` the caller needs no more than that many pixels on the shorter side: a JPEG may then be
        decoded at a half, quarter or eighth of its size, never below what was asked.
        """

    def path(self, index: int) -> str:
        """Where an image comes from: a file's path where there is one."""
        return f"{self.name}[{index}]"

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has images 0 to {len(self) - 1}, not {index}.")

    def _decode(self, data: bytes, index: int, shorter: int | None) -> Tensor:
        try:
            return decode(data, channels=self.channels, shorter=shorter)
        except DecodeError as error:
            raise BadImage(index, self.path(index), str(error)) from error

    def __repr__(self) -> str:
        classes = " < ".join(str(len(names)) for names in self.label_names)
        return f"{type(self).__name__}({self.name}: {len(self)} images, classes {classes or 'unknown'})"
