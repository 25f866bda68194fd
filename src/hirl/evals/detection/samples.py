"""Annotated images as tensors: decoded, augmented, in an order that is a function of (seed, position) alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hirl.data.annotations.annotated_images import DetectionSet
from hirl.data.annotations.segmentations import pixels
from hirl.evals.detection.transforms import Augmentation, Sample, fitted, resize_sample
from hirl.seeds import Stream, mix_seed
from hirl.signals import shielded


@dataclass(frozen=True)
class TrainingSample:
    """A training image as the detector gets it."""

    sample: Sample
    seed: int  # of what the detector draws for this image: anchors and regions


def read_sample(images: DetectionSet, index: int, *, segment: bool) -> Sample:
    """The image with its objects; regions of crowds are left out, as COCO's baselines do in training."""
    image = images.images[index]
    found = [instance for instance in image.instances if not instance.crowd]
    boxes = torch.tensor([instance.box for instance in found], dtype=torch.float32).view(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, [0, 2]] = boxes[:, [0, 2]].clamp(0, image.width)
    boxes[:, [1, 3]] = boxes[:, [1, 3]].clamp(0, image.height)
    labels = torch.tensor([instance.label for instance in found], dtype=torch.int64)
    masks = None
    if segment:
        shapes = [pixels(one.segmentation, image.width, image.height) for one in found if one.segmentation is not None]
        masks = torch.stack(shapes) if shapes else torch.zeros(0, image.height, image.width, dtype=torch.uint8)
    return Sample(images.read(index), boxes, labels, masks)


@dataclass(eq=False)
class TrainingSamples(Dataset[TrainingSample]):
    """An endless sequence of training images: each epoch has all of them, in an order of its own.

    Position p is the (p mod N)-th image of epoch p // N; what is drawn depends on (seed, epoch, image).
    """

    images: DetectionSet
    augmentation: Augmentation
    seed: int
    segment: bool
    _order: tuple[int, Tensor] | None = field(default=None, init=False)

    def __getitem__(self, position: int) -> TrainingSample:
        epoch, place = divmod(position, len(self.images))
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(mix_seed(self.seed, Stream.DETECTION_ORDER, epoch))
            self._order = epoch, torch.randperm(len(self.images), generator=generator)
        index = int(self._order[1][place])
        sample = read_sample(self.images, index, segment=self.segment)
        generator = torch.Generator().manual_seed(mix_seed(self.seed, Stream.DETECTION_VIEW, epoch, index))
        return TrainingSample(
            self.augmentation(sample, generator), mix_seed(self.seed, Stream.DETECTION_IMAGE, epoch, index)
        )


@dataclass(eq=False)
class TestImages(Dataset[tuple[int, Tensor]]):
    """Places in the set with their pixels at the test size."""

    __test__ = False  # not a class of tests
    images: DetectionSet
    places: Sequence[int]
    short: int
    long: int

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, item: int) -> tuple[int, Tensor]:
        place = self.places[item]
        nothing = Sample(self.images.read(place), torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
        return place, resize_sample(nothing, *fitted(nothing.size, self.short, self.long)).image


def parts(
    samples: TrainingSamples, positions: Iterable[int], size: int, workers: int
) -> Iterator[list[TrainingSample]]:
    """The samples at these positions, `size` at a time, read ahead by `workers` processes."""
    loader: DataLoader[Any] = DataLoader(
        samples, batch_size=size, sampler=positions, num_workers=workers, collate_fn=list
    )
    yield from shielded(loader)
