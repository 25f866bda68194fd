"""Features of several views per image by a frozen network, computed once and kept on disk.

Adaptation trains on top of a network that does not change, so an epoch needs no pass through it: it draws from views
that are in this cache. Their random parameters are a function of (image, view) alone, so that runs with other seeds,
methods or settings share them. A killed pass is continued. All that is read is verified by a checksum, the rows of a
killed pass included.

The random views pass in bfloat16 where the processor computes in it, 1.5 times as fast with the default encoder: they
are only learnt from. The plain images, which are clustered and evaluated, do not.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hirl.bfloat16 import has_bfloat16
from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.sources.identity import image_identity, is_identified
from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.data.sources.skipped import Skipped
from hirl.data.upload import upload
from hirl.data.views import View
from hirl.data.views.draws import Ints
from hirl.data.views.render import Batch
from hirl.encoders.folding import fold_batch_norms
from hirl.features.feature_cache import can_keep, map_rows
from hirl.files import Damaged, atomic_write, cache_folder, seal, verify
from hirl.signals import Stopped
from hirl.terminal.progress import Progress, no_progress

FORMAT = "hirl views 3"
BATCH = 32
SAVED_EVERY = 64  # batches
MOST_BYTES = 4 << 30  # of one file; larger sets of images get fewer views
LEAST_VIEWS = 2
KEPT_BYTES = 16 << 30  # of all files together; the oldest go first


@dataclass(frozen=True)
class CachedViews:
    """Features (N, 1 + V, width) in half precision, mapped from a file: of the plain image, then of V views of it."""

    rows: Tensor
    readable: Tensor  # (N,) bool; the rows of an image that could not be read are NaN


def fitting_views(N: int, width: int, wanted: int) -> int:
    """The number of views that fit in the largest file, at most `wanted`."""
    return max(min(LEAST_VIEWS, wanted), min(wanted, MOST_BYTES // (2 * N * width) - 1))


def compute_or_load_views(
    network: nn.Module,
    sha256: str,
    images: ImageSet,
    view: View | None,
    count: int,
    *,
    size: int,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    device: torch.device,
    workers: int | None = None,
    strict: bool = False,
    skipped: Skipped | None = None,
    progress: Progress = no_progress,
    begin: Progress = no_progress,
    should_stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
) -> CachedViews:
    """The network's features of all images at `size` pixels and of `count` draws of `view`; from the cache if possible.

    sha256: of the network
    begin: called once if features are computed, before the first of them
    should_stop: asked after each batch; Stopped is raised once what is done has been saved
    """
    folder = cache_folder() / "views" if folder is None else folder
    key: dict[str, Any] = {"format": FORMAT, "encoder": sha256, "images": _identity(images), "size": size}
    key |= {"view": None if view is None else asdict(view), "count": count, "mean": mean, "std": std}
    key |= {"bfloat16": count > 0 and has_bfloat16(device)}
    name = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:20]
    kept = None if os.access(folder, os.W_OK) else _read(folder / f"{name}.npy")
    if kept is not None:
        return CachedViews(kept, ~kept[:, 0, 0].isnan())
    with _writable(folder) as place, (place / f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)  # of two runs that need the same features, the second waits for the first
        file = place / f"{name}.npy"
        rows = _read(file)
        if rows is None:
            reading: dict[str, Any] = {"device": device, "workers": workers, "strict": strict, "skipped": skipped}
            reading |= {"mean": mean, "std": std, "batch_size": BATCH}
            plain = EvaluationLoader(images, size=size, **reading)
            loader = None
            if count:
                assert view is not None
                loader = Loader(images, (view,) * count, shuffle=False, drop_last=False, **reading)
            network = fold_batch_norms(network).to(device)
            _compute(network, plain, loader, len(images), 1 + count, file, begin, progress, should_stop)
            rows = map_rows(file)  # while it is there: another process may delete it
            _limit(place, keep=file)
    return CachedViews(rows, ~rows[:, 0, 0].isnan())


def _identity(images: ImageSet) -> dict[str, Any]:
    """Identity of the images; sets without a fingerprint use a hash of all pixels."""
    found = image_identity(images)
    if not is_identified(found):
        digest = hashlib.sha256()
        for index in range(len(images)):
            try:
                image = images.read(index)
                digest.update(f"{tuple(image.shape)}".encode() + np.ascontiguousarray(image.numpy()).tobytes())
            except BadImage:
                digest.update(b"unreadable")
        found["fingerprint"] = digest.hexdigest()
    return found


def _read(file: Path) -> Tensor | None:
    """The rows in the file, mapped; None if it is missing or damaged, and then removed."""
    try:
        with suppress(PermissionError):
            os.utime(file)  # before it is read for seconds: other processes delete the oldest
        verify(file, required=True)
        return map_rows(file)
    except FileNotFoundError:
        return None
    except Damaged as error:
        warnings.warn(f"{error}; the features are computed again", stacklevel=3)
        with suppress(PermissionError):
            file.unlink(missing_ok=True)
        return None


class CachedFeatureLoader:
    """Cached features (B, width, 1, 1) of each image once, in order; each rank takes every world_size-th image."""

    workers = 0

    def __init__(
        self, cached: CachedViews, *, device: torch.device, rank: int = 0, world_size: int = 1, batch_size: int = 1024
    ) -> None:
        self.cached, self.device, self.batch_size = cached, device, batch_size
        self.indices = np.arange(rank, len(cached.readable), world_size)

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(self.indices)

    def batches(self, indices: Ints) -> Iterator[Batch]:
        """Yield the images at `indices` alone, in that order."""
        for start in range(0, len(indices), self.batch_size):
            index = torch.from_numpy(indices[start : start + self.batch_size])
            readable = self.cached.readable[index]
            features = self.cached.rows[index, 0].float().nan_to_num()[:, :, None, None]
            yield Batch(index, [upload(features, self.device)], [None], replaced=~readable)


@torch.inference_mode()
def _compute(
    network: nn.Module,
    plain: EvaluationLoader,
    loader: Loader | None,
    N: int,
    views: int,
    file: Path,
    begin: Progress,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> None:
    part, marker = file.with_suffix(".part"), file.with_suffix(".done")
    rows, done, digest = _resumed(part, marker)
    task = f"features of {views} views per image" if views > 1 else "features of the images"
    begin(task, done, N)
    batches = plain.batches(np.arange(done, N))
    drawn: Iterator[Any] = iter(())
    if loader is not None:
        loader.set_epoch(0, done // BATCH)
        drawn = iter(loader)
    for place, batch in enumerate(batches, start=1):
        found = [network(batch.views[0])]
        if loader is not None:
            views_of_batch, device = next(drawn).views, batch.views[0].device
            with torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device)):
                found += [network(view).float() for view in views_of_batch]
        features = torch.stack(found, dim=1).half().cpu()  # (B, 1 + V, width)
        if not features.isfinite().all():
            raise ValueError("the encoder gives features that are NaN or infinite in half precision: it cannot be used")
        features[~batch.readable] = torch.nan
        if rows is None:
            rows = np.lib.format.open_memmap(part, "w+", dtype=np.float16, shape=(N, *features.shape[1:]))
        rows[done : done + len(features)] = features.numpy()
        digest.update(features.numpy().tobytes())
        done += len(features)
        stop = done < N and should_stop()
        if place % SAVED_EVERY == 0 or stop:
            rows.flush()
            with atomic_write(marker) as aside:
                aside.write_text(f"{done} {digest.hexdigest()}", encoding="utf-8")
        progress(task, done, N)
        if stop:
            raise Stopped(f"stopped at image {done:,} of {N:,}")
    assert rows is not None  # a set has at least one image
    rows.flush()
    seal(part)
    part.replace(file)
    marker.unlink(missing_ok=True)


def _resumed(part: Path, marker: Path) -> tuple[np.memmap[Any, Any] | None, int, hashlib._Hash]:
    """The file of a killed pass, the number of images that are done, and the hash of their rows."""
    digest = hashlib.sha256()
    try:
        count, expected = marker.read_text(encoding="utf-8").split()
        rows: np.memmap[Any, Any] = np.load(part, mmap_mode="r+", allow_pickle=False)
        done = int(count)
        for start in range(0, done, BATCH):
            digest.update(rows[start : min(start + BATCH, done)].tobytes())
    except (OSError, ValueError):
        return None, 0, hashlib.sha256()
    return (rows, done, digest) if digest.hexdigest() == expected else (None, 0, hashlib.sha256())


def _limit(folder: Path, *, keep: Path) -> None:
    """Delete the least recently used files until the rest fit in KEPT_BYTES."""
    files: list[tuple[float, int, Path]] = []
    for file in folder.glob("*.npy"):
        with suppress(FileNotFoundError):  # another process deletes as well
            files.append((file.stat().st_mtime, file.stat().st_size, file))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total > KEPT_BYTES and file != keep:
            total -= size
            file.unlink(missing_ok=True)


@contextmanager
def _writable(folder: Path) -> Iterator[Path]:
    """The folder, or if it cannot be written to a temporary one: a file that is mapped outlives it."""
    if can_keep(folder):
        yield folder
    else:
        with TemporaryDirectory() as instead:
            yield Path(instead)
