"""A selection of the images of a set."""

from __future__ import annotations

from torch import Tensor

from hirl.data.sources.image_set import BadImage, ImageSet


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

    def path(self, index: int) -> str:
        return self._images.path(int(self._chosen[index]))
