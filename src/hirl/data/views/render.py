"""From indices to random views: reading, geometry and photometry.

Arrays of small images are cropped in batches on the training device. All other images are read and cropped one by one
in worker processes, which also apply the colours on a CPU; with other devices, uint8 crops are transferred first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.data.sources.skipped import Skipped, read_or_replace, stand_ins
from hirl.data.upload import upload
from hirl.data.views import View
from hirl.data.views.draws import Ints
from hirl.data.views.geometry import cropped, interleaved, resized_crops
from hirl.data.views.masks import uploaded_mask
from hirl.data.views.normalisation import Normalisation
from hirl.data.views.parameters import augment_seeds, boxes, colours, crop_numbers, shorter_side_needed
from hirl.data.views.photometry import coloured
from hirl.data.views.rand_augment import rand_augmented

_LARGEST_BATCHED = 128  # pixels per side; at 256, resizing one by one measured 8 times faster than matrix products


@dataclass
class Batch:
    """A batch for the network: index (B,), one (B, C, s, s) float tensor per view, and the masks of masked views.

    `index` is that of the image in the views: where an image cannot be read, that of the one that stands in for it. In
    training the stand-in is simply used once more. In evaluation it is not what was asked for: see `readable`.
    """

    index: Tensor
    views: list[Tensor]
    masks: list[Tensor | None]
    replaced: Tensor | None = None  # (B,) bool, on the CPU; of an EvaluationLoader

    @property
    def readable(self) -> Tensor:
        """(B,) bool, on the CPU: False for a row of an EvaluationLoader that shows a stand-in."""
        return torch.ones(len(self), dtype=torch.bool) if self.replaced is None else ~self.replaced

    def __len__(self) -> int:
        return len(self.index)


@dataclass
class Piece:
    """A batch, or part of one, in the making: views of one size together, (views, B, C, s, s), uint8 until coloured.

    Only the views go to the device early: the index is needed on the CPU, which a copy back would keep waiting.
    """

    index: Tensor
    groups: list[Tensor]
    masks: list[Tensor | None]
    bad: list[BadImage]  # found unreadable meanwhile
    replaced: Tensor | None = None  # (B,) bool: rows that show a stand-in; of images for evaluation

    def pin_memory(self) -> Piece:
        """Called by DataLoader, which would not look for tensors in here. Views on a GPU need no pinning."""
        return replace(
            self, groups=[group.pin_memory() if group.device.type == "cpu" else group for group in self.groups]
        )


def join(pieces: list[Piece]) -> Piece:
    """Put parts together where they are: concatenating pinned memory on the CPU would give pageable memory."""
    if len(pieces) == 1:
        return pieces[0]
    masks: list[Tensor | None] = []
    for parts in zip(*(piece.masks for piece in pieces), strict=True):
        present = [part for part in parts if part is not None]
        masks.append(torch.cat(present) if present else None)
    replaced = [piece.replaced for piece in pieces if piece.replaced is not None]
    return Piece(
        torch.cat([piece.index for piece in pieces]),
        [torch.cat(parts, 1) for parts in zip(*(piece.groups for piece in pieces), strict=True)],
        masks,
        [bad for piece in pieces for bad in piece.bad],
        torch.cat(replaced) if replaced else None,
    )


def is_batched(images: ImageSet) -> bool:
    """Whether the views of this set are made batch by batch, without workers."""
    return images.pixels is not None and max(images.pixels.shape[-2:]) <= _LARGEST_BATCHED


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread: on small images a second one gains little, and waiting for it made batches 13 to 30
    times slower when another process used its core (docs/views.md)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(eq=False)
class ViewRenderer:
    """Random views; a pure function of (seed, epoch, indices)."""

    images: ImageSet
    views: tuple[View, ...]
    _: KW_ONLY
    seed: int
    normalisation: Normalisation
    device: torch.device
    strict: bool

    def __post_init__(self) -> None:
        self._skipped = Skipped()
        self._actual = None if self.images.readable is None else stand_ins(self.images.readable).numpy()
        sizes = dict.fromkeys(view.size for view in self.views)
        # Views of equal size share a buffer: fewer, larger operations.
        self._groups = [tuple(n for n, view in enumerate(self.views) if view.size == size) for size in sizes]

    def render_in_worker(self, indices: Ints, epoch: int) -> Piece:
        """The part that runs in a worker: everything on a CPU or for arrays, otherwise reading and cropping."""
        if is_batched(self.images):
            indices = indices if self._actual is None else self._actual[indices]
            with _one_thread():
                return self._colour(self._crop_array(indices, epoch), epoch)
        piece = self._crop_images(indices, epoch)
        return self._colour(piece, epoch) if self.device.type == "cpu" else piece

    def finish_on_device(self, piece: Piece, epoch: int) -> Batch:
        """The part that runs in the main process, for views on the device: colours, if they are still missing."""
        if piece.groups[0].dtype == torch.uint8:
            piece = self._colour(piece, epoch)
        views = [torch.empty(0)] * len(self.views)
        for group, together in zip(self._groups, piece.groups, strict=True):
            for number, view in zip(group, together, strict=True):
                views[number] = view
        masks = [None if mask is None else uploaded_mask(mask, self.device) for mask in piece.masks]
        return Batch(upload(piece.index, self.device), views, masks)

    def _crop_array(self, indices: Ints, epoch: int) -> Piece:
        assert self.images.pixels is not None
        pixels = upload(self.images.pixels[torch.from_numpy(indices)], self.device)
        count, channels, height, width = pixels.shape
        numbers = crop_numbers(self.seed, epoch, indices, self.views)
        box = boxes(numbers, self.views, height, width)  # (B, views)
        groups = []
        for group in self._groups:
            size = self.views[group[0]].size
            crops = torch.empty(len(group), count, channels, size, size, device=self.device)
            for out, number in zip(crops, group, strict=True):
                resized_crops(pixels, box.view(number), size, self.views[number].interpolation, out=out)
                if self.views[number].rand_augment is not None:
                    rounded = out.mul(255).round().to("cpu", torch.uint8)
                    out.copy_(self._augmented(rounded, indices, epoch, number)).div_(255)
            groups.append(crops)
        return Piece(torch.from_numpy(indices), groups, self._masks(indices, epoch), [])

    def _crop_images(self, indices: Ints, epoch: int) -> Piece:
        bad_before = len(self._skipped)
        sizes = [self.views[group[0]].size for group in self._groups]
        groups = [
            torch.empty(len(group), len(indices), self.images.channels, size, size, dtype=torch.uint8)
            for group, size in zip(self._groups, sizes, strict=True)
        ]
        real = indices.copy()
        numbers = crop_numbers(self.seed, epoch, indices, self.views)  # (B, views, slots)
        shorter = shorter_side_needed(numbers, self.views)
        for row, index in enumerate(indices):
            image, real[row] = read_or_replace(
                self.images, int(index), skipped=self._skipped, strict=self.strict, shorter=int(shorter[row])
            )
            if real[row] != index:  # a replacement keeps its own views, so read it for its own crops
                own = crop_numbers(self.seed, epoch, real[row : row + 1], self.views)
                image = self.images.read(int(real[row]), shorter=int(shorter_side_needed(own, self.views)[0]))
                numbers[row] = own[0]
            box = boxes(numbers[row], self.views, *image.shape[-2:])  # (views,)
            image = interleaved(image)
            for group, crops in zip(self._groups, groups, strict=True):
                for out, number in zip(crops, group, strict=True):
                    out[row] = cropped(image, box.view(number), self.views[number])
        for group, crops in zip(self._groups, groups, strict=True):
            for out, number in zip(crops, group, strict=True):
                if self.views[number].rand_augment is not None:
                    self._augmented(out, real, epoch, number)
        bad = list(self._skipped) if len(self._skipped) > bad_before else []
        return Piece(torch.from_numpy(real), groups, self._masks(real, epoch), bad)

    def _augmented(self, crops: Tensor, indices: Ints, epoch: int, number: int) -> Tensor:
        """Change the crops (B, C, s, s) uint8 of a view in place."""
        for row, seed in enumerate(augment_seeds(self.seed, epoch, indices, number)):
            crops[row] = rand_augmented(crops[row], self.views[number], self.normalisation.mean, seed)
        return crops

    def _masks(self, indices: Ints, epoch: int) -> list[Tensor | None]:
        return [
            None if view.mask is None else view.mask.draw(view.size, self.seed, epoch, indices, number)
            for number, view in enumerate(self.views)
        ]

    def _colour(self, piece: Piece, epoch: int) -> Piece:
        indices = piece.index.numpy()
        mean, std = self.normalisation.tensors(self.device)
        groups = []
        for group, crops in zip(self._groups, piece.groups, strict=True):
            drawn = colours(self.seed, epoch, indices, self.views, group)
            groups.append(coloured(crops.flatten(0, 1), drawn, mean, std).view(crops.shape))
        return replace(piece, groups=groups)
