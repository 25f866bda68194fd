"""Reading tar shards: hirl's random access by an index against webdataset's stream, alternating in one process.

    pip install webdataset
    python -m benchmarks.shards

2,000 JPEGs of 256 px in 4 shards, in the system's cache, on one thread. webdataset reads in the order of the shards,
with its usual shuffle buffer of 1,000; hirl in the order of an epoch. CPU seconds are counted, the minimum of the
repeats; decoded pictures are RGB arrays in both.
"""

from __future__ import annotations

import argparse
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hirl.data.sources import open_images
from hirl.data.sources.shard_index import read_index
from hirl.data.views.draws import permutation

SHARDS, IMAGES, SIDE = 4, 2000, 256


def write_shards(folder: Path) -> list[str]:
    """Shards of smooth random pictures."""
    random = np.random.default_rng(0)
    files = []
    for shard in range(SHARDS):
        files.append(str(folder / f"train-{shard:04}.tar"))
        with tarfile.open(files[-1], "w") as archive:
            for number in range(IMAGES // SHARDS):
                small = Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8))
                encoded = io.BytesIO()
                small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
                entry = tarfile.TarInfo(f"{shard:02}{number:05}.jpg")
                entry.size = len(encoded.getvalue())
                encoded.seek(0)
                archive.addfile(entry, encoded)
    return files


def main() -> None:
    import webdataset

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as own:
        os.environ["XDG_CACHE_HOME"] = own  # of the indexes
        files = write_shards(Path(own))
        start = time.process_time()
        for file in files:
            read_index(file)
        print(f"index of {IMAGES:,} images, made once: {time.process_time() - start:.2f} CPU s")
        images = open_images(own)

        def stream(*, decode: bool) -> int:
            found = webdataset.WebDataset(files, shardshuffle=False).shuffle(1000)
            found = found.decode("rgb8") if decode else found
            return sum(1 for sample in found if sample["jpg"] is not None)

        def indexed(images: Any) -> int:
            return sum(1 for index in permutation(0, 0, len(images)) if images.read(int(index)) is not None)

        encoded: Any = open_images(own)
        encoded._decode = lambda data, *_: data  # read alone

        ways: dict[str, Callable[[], int]] = {
            "webdataset, bytes": lambda: stream(decode=False),
            "webdataset, decoded": lambda: stream(decode=True),
            "hirl, bytes": lambda: indexed(encoded),
            "hirl, decoded": lambda: indexed(images),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, work in ways.items():
                start = time.process_time()
                assert work() == IMAGES
                taken[name].append(time.process_time() - start)
        for name, seconds in taken.items():
            print(f"{name:<20} {min(seconds):.2f} CPU s, {IMAGES / min(seconds):,.0f} images per CPU second")


if __name__ == "__main__":
    main()
