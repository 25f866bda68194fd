"""The images of a run: opened once, read into memory if they are small, with the settings for reading the others."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from typing import Any

from hirl.data.sources import Skipped, in_memory, open_images, read_or_replace
from hirl.data.sources.image_list import full_path, path_of
from hirl.data.sources.image_set import ImageSet
from hirl.runs.images_file import OpenedImages
from hirl.train.settings import GivenSettings

MEASURED = 16  # images whose size is read


@dataclass(frozen=True)
class TrainingImages:
    """Images to train on. `skipped` collects those that any loader could not read."""

    images: ImageSet
    opened: OpenedImages
    workers: int | None = None
    strict: bool = False
    skipped: Skipped = field(default_factory=Skipped)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def name(self) -> str:
        """The data as the user named it, or the name of an object."""
        data = self.opened.data
        return os.fspath(data) if isinstance(data, str | os.PathLike) else self.images.name

    @property
    def place(self) -> str:
        """The full path, or the name if there is no path."""
        path = path_of(self.opened.data)
        return self.name if path is None else full_path(path)

    def reading(self, settings: GivenSettings) -> dict[str, Any]:
        """The reading arguments of every loader of these images."""
        own = {"workers": self.workers, "strict": self.strict, "skipped": self.skipped}
        return own | {"mean": settings.mean, "std": settings.std}

    def typical_side(self) -> int:
        """The median of the shorter sides of some images, spread over the set."""
        images = self.images
        if images.pixels is not None:
            return int(min(images.pixels.shape[-2:]))
        count = min(MEASURED, len(images))
        places = [place * len(images) // count for place in range(count)]
        sides = [min(read_or_replace(images, place, skipped=self.skipped)[0].shape[-2:]) for place in places]
        return int(statistics.median_low(sides))


def open_training_images(given: GivenSettings, *, workers: int | None, strict: bool) -> TrainingImages:
    skipped = Skipped()
    found = open_images(given.data, split=given.split, channels=given.channels)
    images = in_memory(found, strict=strict, skipped=skipped)
    opened = OpenedImages(given.data, found, hashes=images.pixels is not None)
    return TrainingImages(images, opened, workers, strict, skipped)
