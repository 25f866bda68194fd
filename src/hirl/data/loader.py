"""Batches of views, a function of (seed, epoch) for any number of workers and ranks, from any batch on.

The order of an epoch is cut into global batches, and each of those into one share per rank, so that two processes
together get the same images as a single one. Tasks carry their epoch, so workers persist across epochs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.data.sources.skipped import Skipped
from hirl.data.upload import upload
from hirl.data.views import View
from hirl.data.views.centre import CentreRenderer
from hirl.data.views.draws import Ints, permutation
from hirl.data.views.normalisation import choose_normalisation
from hirl.data.views.render import Batch, Piece, ViewRenderer, is_batched, join
from hirl.data.views.view import check_interpolation
from hirl.signals import shielded

T = TypeVar("T")
_LARGEST_PIECE = 64  # images per task of a worker: limits shared memory and the wait for the first batch
_BATCHES_AHEAD = 2
CPU_PIXELS = 1 << 20  # of the images of an evaluated batch on a CPU: 20 of 224 pixels
_Task = tuple[int, Ints]  # epoch, indices

# One batch on its way, of one rank's share of a global batch:
#
#   share of indices ─ cut ─▶ tasks (_Tasks) ─▶ workers: renderer.render_in_worker (_Pieces) ─▶ pieces
#                                                                                                │
#   batch on the device ◀─ renderer.finish_on_device ◀─ join ◀─ upload ◀─ main process (_Batches) ┘


class _Renderer(Protocol):
    images: ImageSet
    device: torch.device

    def render_in_worker(self, indices: Ints, epoch: int) -> Piece: ...
    def finish_on_device(self, piece: Piece, epoch: int) -> Batch: ...


class _Pieces(Dataset[Piece | BadImage]):
    """The part that runs in workers: turns a task into a piece of a batch."""

    def __init__(self, renderer: _Renderer) -> None:
        self.renderer = renderer

    def __getitem__(self, task: _Task) -> Piece | BadImage:
        epoch, indices = task
        try:
            return self.renderer.render_in_worker(indices, epoch)
        except BadImage as bad:  # raised again in the main process: torch would turn it into a RuntimeError
            return bad


class _Tasks(Sampler[_Task]):
    """The tasks of an epoch, set before it starts."""

    tasks: Sequence[_Task] = ()

    def __iter__(self) -> Iterator[_Task]:
        return iter(self.tasks)


class _Batches:
    """The part that runs in the main process, common to training and evaluation."""

    def __init__(self, renderer: _Renderer, *, workers: int | None, batch: int, skipped: Skipped | None) -> None:
        self.skipped = Skipped() if skipped is None else skipped
        self.waited = 0.0  # seconds the caller has waited for batches, over all epochs
        batched = is_batched(renderer.images)  # arrays of small images are processed batch by batch, without workers
        self.workers = (0 if batched else min(available_cores(), 8)) if workers is None else workers
        check_workers(self.workers)
        if self.workers and batched and renderer.device.type != "cpu":
            raise ValueError(
                f"workers is {workers}, but views of small images in memory are made on {renderer.device} itself: "
                "use 0, or leave it out"
            )
        self._renderer = renderer
        self._tasks = _Tasks()
        per_batch = -(-batch // _LARGEST_PIECE)
        self._pieces: DataLoader[Piece | BadImage] = DataLoader(
            _Pieces(renderer),
            batch_size=None,
            sampler=self._tasks,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            prefetch_factor=-(-_BATCHES_AHEAD * per_batch // self.workers) if self.workers else None,
            pin_memory=renderer.device.type == "cuda",
            generator=torch.Generator(),  # or every epoch would advance torch's global generator
        )

    def _run(self, shares: list[Ints], epoch: int) -> Iterator[Batch]:
        cuts = [np.split(share, range(_LARGEST_PIECE, len(share), _LARGEST_PIECE)) for share in shares]
        if self.workers == 0 and is_batched(self._renderer.images):
            cuts = [[share] for share in shares]
        self._tasks.tasks = [(epoch, indices) for cut in cuts for indices in cut]
        start = perf_counter()
        pieces = shielded(self._pieces)
        for cut in cuts:
            batch = self._renderer.finish_on_device(join([self._received(next(pieces)) for _ in cut]), epoch)
            # Convolutions and pooling are faster in this layout, also those in front of a transformer.
            batch.views = [view.contiguous(memory_format=torch.channels_last) for view in batch.views]
            self.waited += perf_counter() - start
            yield batch
            start = perf_counter()

    def _received(self, piece: Piece | BadImage) -> Piece:
        """The piece that a worker sent, with its views on the device and its unreadable images recorded."""
        if isinstance(piece, BadImage):
            raise piece
        for bad in piece.bad:
            self.skipped.add(bad)
        return replace(piece, groups=[upload(group, self._renderer.device) for group in piece.groups])


def check_workers(workers: int | None) -> None:
    """Raise a ValueError unless so many processes can read images; None is the default."""
    if workers is not None and workers < 0:
        raise ValueError(f"workers is {workers}, but must be at least 0: leave it out for the default")


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def grouped(batches: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive batches in lists of `size`, the parts of a larger batch; an incomplete last list is dropped."""
    parts: list[T] = []
    for batch in batches:
        parts.append(batch)
        if len(parts) == size:
            yield parts
            parts = []


def check_batch(batch_size: int, world_size: int) -> None:
    """Raise a ValueError unless the ranks can share a batch equally."""
    if batch_size < 1 or batch_size % world_size:
        multiple = f" and a multiple of the {world_size} processes" if world_size > 1 else ""
        raise ValueError(f"batch_size is {batch_size}, but must be at least 1{multiple}")


def _check(images: ImageSet, rank: int, world_size: int) -> None:
    if len(images) == 0:
        raise ValueError(f"{images.name} has no images, but a loader needs at least one")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} of world_size {world_size}, but must be at least 0 and below world_size")


def resized_side(size: int) -> int:
    """The shorter side of an image before its central square of `size` is taken; small images have no margin."""
    return round(size * 256 / 224) if size >= 96 else size


class Loader(_Batches):
    """Random views of a set of images. `set_epoch` sets the epoch, and the first batch, of the next iteration."""

    def __init__(
        self,
        images: ImageSet,
        views: tuple[View, ...],
        *,
        batch_size: int,
        seed: int = 0,
        workers: int | None = None,
        device: str | torch.device = "cpu",
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
        strict: bool = False,
        skipped: Skipped | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        """`batch_size` is the global one, over all ranks."""
        _check(images, rank, world_size)
        if not views:
            raise ValueError("views is empty, but a loader needs at least one view")
        check_batch(batch_size, world_size)
        if drop_last and batch_size > len(images):
            raise ValueError(
                f"batch_size is {batch_size}, but {images.name} has only {len(images)} images: "
                "choose a smaller one, or drop_last=False"
            )
        self.normalisation = choose_normalisation(images, mean, std)
        self.batch_size, self.seed, self.shuffle, self.drop_last = batch_size, seed, shuffle, drop_last
        self.rank, self.world_size = rank, world_size
        self.epoch, self.start_batch = 0, 0
        self._count, place = len(images), torch.device(device)
        self.renderer = ViewRenderer(
            images, tuple(views), seed=seed, normalisation=self.normalisation, device=place, strict=strict
        )
        super().__init__(self.renderer, workers=workers, batch=batch_size // world_size, skipped=skipped)

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Set the epoch and the first batch of the next iteration, independently of earlier ones."""
        if epoch < 0 or not 0 <= start_batch <= len(self):
            raise ValueError(
                f"epoch is {epoch} and start_batch {start_batch}, but both must be at least 0, and start_batch at "
                f"most the number of batches, {len(self)}"
            )
        self.epoch = epoch
        self.start_batch = start_batch

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._count // self.batch_size if self.drop_last else -(-self._count // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        # A generator: epoch and start are read at the first `next`, so `set_epoch` may follow `iter`.
        order = permutation(self.seed, self.epoch, self._count) if self.shuffle else np.arange(self._count)
        batches = [order[n * self.batch_size :][: self.batch_size] for n in range(self.start_batch, len(self))]
        shares = [np.array_split(batch, self.world_size)[self.rank] for batch in batches]
        yield from self._run(shares, self.epoch)


class EvaluationLoader(_Batches):
    """Each image once, in order: resized, centre-cropped, normalised. Each rank takes every world_size-th image.

    The row of an image that cannot be read shows another one: `batch.readable` is False there.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        size: int,
        resize: int | None = None,
        interpolation: str = "bilinear",
        batch_size: int | None = None,
        workers: int | None = None,
        device: str | torch.device = "cpu",
        rank: int = 0,
        world_size: int = 1,
        strict: bool = False,
        skipped: Skipped | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        """`resize`: the shorter side before the crop; by default 256/224 of `size`, or `size` itself below 96 pixels.

        `batch_size` is per rank here: the result does not depend on it. By default 256, and on a CPU fewer of large
        images: EfficientNet-Lite0 at 224 pixels takes 1.0 GB with 16 images and 4.1, and more time, with 256.
        """
        _check(images, rank, world_size)
        if batch_size is None:
            batch_size = 256 if torch.device(device).type != "cpu" else max(1, min(256, CPU_PIXELS // size**2))
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, but must be at least 1")
        before = resize if resize is not None else resized_side(size)
        if not 1 <= size <= before:
            raise ValueError(f"size is {size} and resize {before}, but size must be at least 1 and at most resize")
        check_interpolation("interpolation", interpolation)
        self.normalisation = choose_normalisation(images, mean, std)
        self.batch_size = batch_size
        self.indices = np.arange(rank, len(images), world_size)
        place = torch.device(device)
        renderer = CentreRenderer(images, size, before, interpolation, self.normalisation, place, strict)
        super().__init__(renderer, workers=workers, batch=batch_size, skipped=skipped)

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(self.indices)

    def batches(self, indices: Ints) -> Iterator[Batch]:
        """Yield the images at `indices` alone, in that order."""
        starts = range(0, len(indices), self.batch_size)
        yield from self._run([indices[start : start + self.batch_size] for start in starts], 0)
