"""Speed of views: images per second against lightly's transforms in a torch DataLoader, in one run.

    python -m benchmarks.views                  # photographs are generated
    python -m benchmarks.views --data FOLDER    # JPEGs of your own (about 500 × 375 for comparable figures)

Both sides make the same kinds of views with the same probabilities, on two cores. lightly gets Pillow images, its own
transforms, two persistent workers and a warm-up; small images are Pillow images in memory. Epochs of both sides
alternate and the fastest of each counts, so that other work on the machine affects both equally.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lightly.transforms.moco_transform import MoCoV2Transform
from lightly.transforms.swav_transform import SwaVTransform
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

from hirl.data.loader import Loader
from hirl.data.sources import ImageSet, open_images
from hirl.data.views import View, render
from hirl.methods import MoCoV2, SwAV

WORKERS = 2
BLURRED = 64  # pixels: smaller views are not blurred by hirl, and therefore not by lightly here either
Transform = Callable[[Image.Image], Any]  # a list of tensors, one per view


class Pictures(Dataset[Any]):
    """Pillow images, from memory or from files, through one of lightly's transforms."""

    def __init__(self, pictures: Sequence[Image.Image | Path], transform: Transform) -> None:
        self.pictures = pictures
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        picture = self.pictures[index]
        if isinstance(picture, Path):
            with Image.open(picture) as file:
                picture = file.convert("RGB")
        return self.transform(picture)


def lightly_pair(size: int) -> Transform:
    return MoCoV2Transform(input_size=size, gaussian_blur=0.5 if size >= BLURRED else 0.0, sigmas=(0.1, 2))


def lightly_multi_crop(size: int) -> Transform:
    local_size = SwAV().views(size)[-1].size
    return SwaVTransform(crop_sizes=(size, local_size), gaussian_blur=0.5 if size >= BLURRED else 0.0)


def photographs(folder: Path, count: int, width: int = 500, height: int = 375) -> None:
    """JPEGs that compress about as photographs do: colours that vary at all scales, with sharp edges."""
    rng = np.random.default_rng(0)
    for number in range(count):
        picture = np.zeros((height, width, 3), np.float32)
        for octave in range(2, 9):
            side = 2**octave
            noise = rng.normal(0, 2.0 ** (-0.7 * octave), (side * 3 // 4, side, 3)).astype(np.float32)
            for channel in range(3):
                layer = Image.fromarray(noise[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
                picture[..., channel] += np.asarray(layer)
        y, x = np.mgrid[:height, :width]
        for _ in range(6):
            cx, cy, rx, ry = rng.uniform((0, 0, 30, 30), (width, height, 160, 120))
            picture[((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1] += rng.normal(0, 0.25, 3)
        picture = 128 + 55 * picture / picture.std() + rng.normal(0, 4, picture.shape)  # plus sensor noise
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04}.jpg", quality=92)


def epoch_seconds(batches: Iterable[Any]) -> float:
    start = perf_counter()
    for _ in batches:
        pass
    return perf_counter() - start


def compare(
    table: Table,
    name: str,
    images: ImageSet,
    pictures: Sequence[Image.Image | Path],
    views: tuple[View, ...],
    transform: Transform,
    batch: int,
    repeats: int,
) -> None:
    theirs: DataLoader[Any] = DataLoader(
        Pictures(pictures, transform),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    ours = Loader(images, views, batch_size=batch, workers=None if images.pixels is not None else WORKERS)
    count = len(images) // batch * batch
    times: list[tuple[float, float]] = []
    for epoch in range(repeats + 1):
        ours.set_epoch(epoch)
        times.append((epoch_seconds(ours), epoch_seconds(theirs)))
    mine, lightly = (min(column) for column in zip(*times[1:], strict=True))  # the first warms up
    table.add_row(name, f"{count / mine:,.0f}", f"{count / lightly:,.0f}", f"{lightly / mine:.2f}×", shares(ours))


def shares(loader: Loader) -> str:
    """Where the time of a batch goes, made in this process on one thread as in a worker; geometry is the rest."""
    torch.set_num_threads(1)
    renderer, indices = loader.renderer, np.arange(loader.batch_size)
    renderer.render_in_worker(indices, 0)
    spent = {"read_or_replace": 0.0, "upload": 0.0, "coloured": 0.0}
    replaced: Any = {name: timed(getattr(render, name), name, spent) for name in spent}
    with patch.multiple(render, **replaced):
        start = perf_counter()
        for epoch in range(3):
            renderer.render_in_worker(indices, epoch)
        total = perf_counter() - start
    torch.set_num_threads(2)
    read, photometry = spent["read_or_replace"] + spent["upload"], spent["coloured"]
    stages = {"read": read, "geometry": total - read - photometry, "photometry": photometry}
    return " ".join(f"{stage} {seconds / total:.0%}" for stage, seconds in stages.items())


def timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        result = function(*args, **kwargs)
        spent[name] += perf_counter() - start
        return result

    return run


def small_images(size: int, count: int) -> tuple[ImageSet, list[Image.Image]]:
    """Smooth random images, the same for both sides."""
    rng = np.random.default_rng(size)
    pictures = [
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((size, size)) for _ in range(count)
    ]
    return open_images(np.stack([np.asarray(picture) for picture in pictures])), pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of JPEGs; by default generated")
    parser.add_argument("--repeats", type=int, default=3, help="measured epochs, after a warm-up")
    parser.add_argument("--only", default="", help="run only rows whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    table = Table("views", "hirl images/s", "lightly images/s", "ratio", "share of hirl's time")

    def run(
        name: str,
        images: ImageSet,
        pictures: Sequence[Image.Image | Path],
        views: tuple[View, ...],
        transform: Transform,
        batch: int,
    ) -> None:
        if arguments.only in name:
            compare(table, name, images, pictures, views, transform, batch, arguments.repeats)

    for size, count in ((32, 4096), (64, 2048)):
        images, pictures = small_images(size, count)
        run(f"pair, {size} px, memory", images, pictures, MoCoV2().views(size), lightly_pair(size), 256)
    images, pictures = small_images(64, 1024)
    run("2 + 6, 64 px, memory", images, pictures, SwAV().views(64), lightly_multi_crop(64), 256)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data is None:
            photographs(Path(folder), 256)
        files = open_images(arguments.data or folder)
        paths = [Path(files.path(index)) for index in range(len(files))][:512]
        if len(paths) < 64:
            sys.exit(f"{arguments.data} holds {len(paths)} images, but the benchmark needs at least 64.")
        run("pair, 224 px, JPEG", files, paths, MoCoV2().views(224), lightly_pair(224), 64)
        run("2 + 6, 224 px, JPEG", files, paths, SwAV().views(224), lightly_multi_crop(224), 64)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
