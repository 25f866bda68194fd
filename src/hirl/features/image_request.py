"""The images to run an encoder on: a training split and a test split of the user's data, each opened once."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from hirl.data.sources import open_in_memory
from hirl.data.sources.image_list import full_path
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.splits import NoSplits
from hirl.features.open_encoder import Encoder
from hirl.runs.images_file import find_images

ADVICE = "name labelled images (hirl evaluate --data, hirl compare --evaluation_data)"


class NoLabels(ValueError):  # noqa: N818
    """An evaluation needs labels, but the images, `name`, have none."""

    def __init__(self, name: str, advice: str = ADVICE, task: str = "") -> None:
        prefix = f"{task}: " if task else ""
        super().__init__(f"{prefix}{name} has no labels, but this evaluation needs them: {advice}")
        self.name, self.advice = name, advice


@dataclass(frozen=True)
class ImageRequest:
    """Which images to run on, as the user named them. A part is opened when it is first asked for."""

    data: Any
    test_data: Any = None
    split: str | None = None
    test_split: str | None = None
    channels: int = 3
    opened: ImageSet | None = None  # the images at `data` and `split`, where they were opened to find them
    _opened: dict[tuple[bool, str | None], ImageSet] = field(default_factory=dict, repr=False, compare=False)

    def train(self) -> ImageSet:
        """The images to learn from or to search."""
        return self._open(self.data, self.split)

    def test(self, *, held_out: bool = True, labelled: bool = True) -> ImageSet:
        """The images to test on: by default the val split, of `test_data` if it has splits, too.

        Args:
            held_out: Whether they must be others than the training images.
            labelled: Whether labels are needed, for the advice to a user who has none.
        """
        source = self.data if self.test_data is None else self.test_data
        if self.test_split is not None:
            return self._open(source, self.test_split)
        try:
            return self._open(source, "val")
        except NoSplits as error:
            if self.test_data is not None or not held_out:
                return self._open(source, None)
            train = self.train()
            if labelled and train.labels is None:
                raise NoLabels(
                    train.name,
                    f"{ADVICE}, in folders such as train/cat/1.jpg and val/cat/2.jpg; without labels, hirl embed and "
                    "hirl cluster show what was learnt",
                ) from error
            raise ValueError(
                f"{train.name} has no splits such as train and val, but this evaluation needs separate test "
                "images: name them with --test_data"
            ) from error
        except ValueError as error:
            options = "--test_split" if self.test_data is not None else "--test_data or --test_split"
            raise ValueError(f"{str(error).rstrip('.')}; name the test images with {options}") from error

    def _open(self, source: Any, split: str | None) -> ImageSet:
        key = (source is self.test_data, split)
        if key not in self._opened:
            if self.opened is not None and key == (False, self.split):
                self._opened[key] = open_in_memory(self.opened, channels=self.channels)
            else:
                self._opened[key] = open_in_memory(source, split=split, channels=self.channels)
        return self._opened[key]


def warn_of_overlap(train: ImageSet, test: ImageSet) -> None:
    """Warn if test images are also training images: they would find themselves."""
    if train.has_files and test.has_files:
        known = {full_path(train.path(index)) for index in range(len(train))}
        shared = sum(full_path(test.path(index)) in known for index in range(len(test)))
        if shared:
            warnings.warn(
                f"{shared:,} of the {len(test):,} test images are also training images, so the figures are too high: "
                "name others with --test_data or --test_split",
                stacklevel=3,
            )


def request_images(
    encoder: Encoder,
    data: Any,
    *,
    test_data: Any = None,
    split: str | None = None,
    test_split: str | None = None,
    channels: int | None = None,
) -> ImageRequest:
    """The request with the defaults of the encoder's run: its images, wherever they are now, and its split."""
    known = None
    if data is None:
        if encoder.run is None:
            raise ValueError(f"{encoder.name} does not name its images: give a folder or a known name with --data")
        data, known = find_images(encoder.run)
        own = encoder.run.config["split"]
        if split not in (None, own):
            known = None
        split = own if split is None else split
    return ImageRequest(data, test_data, split, test_split, encoder.channels or channels or 3, known)
