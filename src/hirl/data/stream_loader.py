"""Batches of views of a stream of images: the counterpart of `Loader` for tar shards, which have no index."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hirl.data.loader import normalisation
from hirl.data.sources import BadImage, ImageSet, ImageStream, Skipped
from hirl.data.views import View
from hirl.data.views.render import Batch, Piece, ViewRenderer, join, to_device

_PIECE = 64  # images per piece that a worker returns


class StreamLoader:
    """Random views of a stream, a function of (seed, epoch), the number of ranks and the number of workers.

    Each worker of each rank reads its own shards, so there must be at least as many shards as workers over all ranks.
    Batches are per rank: their number may differ between ranks, and the last, incomplete one is dropped. The views of
    an image depend only on (seed, epoch) and its position in the shards. A bad image is left out and recorded, or
    raised with `strict`.
    """

    def __init__(
        self,
        stream: ImageStream,
        views: tuple[View, ...],
        *,
        batch_size: int,
        seed: int = 0,
        workers: int = 0,
        buffer: int = 1000,
        device: str | torch.device = "cpu",
        rank: int = 0,
        world_size: int = 1,
        strict: bool = False,
        skipped: Skipped | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        """`batch_size`: images per batch of this rank; `buffer`: images that a reader shuffles at a time."""
        for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("buffer", buffer, 0)):
            if value < least:
                raise ValueError(f"{name} is {value}, but must be at least {least}.")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank} of world_size {world_size}, but must be at least 0 and below world_size.")
        readers = world_size * max(1, workers)
        if readers > len(stream.shards):
            raise ValueError(
                f"{stream.name} has {len(stream.shards)} shard(s), but {world_size} rank(s) with {workers} worker(s) "
                f"each are {readers} readers: there must be at least as many shards as readers."
            )
        held = _Held(stream)
        self.normalisation = normalisation(held, mean, std)
        self.batch_size, self.epoch = batch_size, 0
        self.skipped = Skipped() if skipped is None else skipped
        self.waited = 0.0  # seconds the caller has waited for batches
        self._renderer = ViewRenderer(
            held, tuple(views), seed=seed, normalisation=self.normalisation, device=torch.device(device), strict=True
        )
        self._workers = workers
        self._pieces = _Pieces(stream, self._renderer, seed, buffer, strict, rank, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}, but must be at least 0.")
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        self._pieces.epoch = self.epoch
        device = self._renderer.device
        # New workers in every epoch: they start with the epoch that is set now.
        pieces = DataLoader(
            self._pieces,
            batch_size=None,
            num_workers=self._workers,
            generator=torch.Generator(),
            pin_memory=device.type == "cuda",
        )
        waiting: list[Piece] = []
        batches = 0
        start = perf_counter()
        for piece in pieces:
            if isinstance(piece, BadImage):
                raise piece
            for bad in piece.bad:
                self.skipped.add(bad)
            waiting.append(to_device(piece, device))
            while sum(len(part.index) for part in waiting) >= self.batch_size:
                joined = join(waiting)
                batch = self._renderer.finish(_part(joined, slice(0, self.batch_size)), self.epoch)
                waiting = [_part(joined, slice(self.batch_size, None))]
                self.waited += perf_counter() - start
                batches += 1
                yield batch
                start = perf_counter()
        if not batches:
            images, name = sum(len(part.index) for part in waiting), self._pieces.stream.name
            raise ValueError(f"batch_size is {self.batch_size}, but this rank got only {images} images of {name}.")


class _Pieces(IterableDataset[Piece | BadImage]):
    """The part that runs in workers: reads shards and yields pieces of batches."""

    def __init__(
        self,
        stream: ImageStream,
        renderer: ViewRenderer,
        seed: int,
        buffer: int,
        strict: bool,
        rank: int,
        world_size: int,
    ) -> None:
        self.stream, self.renderer, self.seed, self.buffer, self.strict = stream, renderer, seed, buffer, strict
        self.rank, self.world_size, self.epoch = rank, world_size, 0

    def __iter__(self) -> Iterator[Piece | BadImage]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        skipped, reported = Skipped(), 0
        held = self.renderer.images
        assert isinstance(held, _Held)
        samples = self.stream.read(
            seed=self.seed,
            epoch=self.epoch,
            part=self.rank * workers + worker,
            parts=self.world_size * workers,
            buffer=self.buffer,
            skipped=skipped,
            strict=self.strict,
        )
        try:
            for sample in samples:
                held.images[sample.index] = sample.image
                if len(held.images) == _PIECE:
                    yield self._piece(held, list(skipped)[reported:])
                    reported = len(skipped)
        except BadImage as bad:  # raised again in the main process: torch would turn it into a RuntimeError
            yield bad
            return
        if held.images:
            yield self._piece(held, list(skipped)[reported:])

    def _piece(self, held: _Held, bad: list[BadImage]) -> Piece:
        piece = self.renderer.begin(np.array(list(held.images), dtype=np.int64), self.epoch)
        held.images.clear()
        return Piece(piece.index, piece.groups, piece.masks, bad)


class _Held(ImageSet):
    """The images of the piece under construction, by their number in the stream."""

    def __init__(self, stream: ImageStream) -> None:
        super().__init__(name=stream.name, channels=stream.channels)
        self.images: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return 1 << 62  # above any index of a stream

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:  # noqa: ARG002 (decoded already)
        return self.images[index]


def _part(piece: Piece, rows: slice) -> Piece:
    return Piece(
        piece.index[rows],
        [group[:, rows] for group in piece.groups],
        [None if mask is None else mask[rows] for mask in piece.masks],
        [],
    )
