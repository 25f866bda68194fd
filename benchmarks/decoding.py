"""What it costs to decode a large JPEG at reduced size for evaluation: time per image, and the cosine to full size.

    python -m benchmarks.decoding FOLDER        # photographs to assemble large ones from, side by side

Features are those of the embedded encoder. Sizes of 4:3 that divide by 8, and one that does not divide by 2.
"""

from __future__ import annotations

import argparse
import io
from time import perf_counter
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.table import Table

from hirl.data.sources import ImageSet, open_images
from hirl.data.sources.decode import decode
from hirl.data.views import centre
from hirl.features.extractor import Extractor
from hirl.features.open_encoder import open_encoder
from hirl.features.preprocessing import preprocessing_for

SIZES = ((640, 480), (1024, 768), (1201, 901), (2048, 1536), (4032, 3024))
FULL = 1 << 30  # times the resized side: no JPEG is large enough to be reduced


class Assembled(ImageSet):
    """JPEGs in memory, each a mosaic of photographs at their own size."""

    def __init__(self, photos: ImageSet, size: tuple[int, int], count: int) -> None:
        super().__init__(name=f"{size[0]} × {size[1]}")
        dice = np.random.default_rng(0)
        self.files = [self._assemble(photos, size, dice) for _ in range(count)]

    @staticmethod
    def _assemble(photos: ImageSet, size: tuple[int, int], dice: np.random.Generator) -> bytes:
        canvas, top = Image.new("RGB", size), 0
        while top < size[1]:
            left, lowest = 0, size[1]
            while left < size[0]:
                tile = photos.read(int(dice.integers(len(photos))))
                canvas.paste(Image.fromarray(tile.permute(1, 2, 0).numpy()), (left, top))
                left, lowest = left + tile.shape[2], min(lowest, top + tile.shape[1])
            top = lowest
        file = io.BytesIO()
        canvas.save(file, "JPEG", quality=90)
        return file.getvalue()

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int, *, shorter: int | None = None) -> torch.Tensor:
        return decode(self.files[index], shorter=shorter)


def measure(photos: ImageSet, count: int, side: int, repeats: int) -> Table:
    encoder = open_encoder("tf_efficientnet_lite0")
    table = Table(title=f"{count} images per size, resized and cropped to {side} px, one thread", title_justify="left")
    for heading in ("image", "ms, full", "ms, reduced", "cosine: least", "mean"):
        table.add_column(heading)
    for size in SIZES:
        images = Assembled(photos, size, count)
        preprocessing = preprocessing_for(encoder, images, image_size=side, workers=0)
        seconds, features = [], []
        for read_at in (FULL, centre.READ_AT):
            with patch.object(centre, "READ_AT", read_at):
                seconds.append(min(_seconds(preprocessing.loader(images)) for _ in range(repeats)) / count)
                features.append(Extractor(encoder, preprocessing).features(images))
        cosines = F.cosine_similarity(features[0], features[1])
        times = [f"{1000 * value:.1f}" for value in seconds]
        table.add_row(images.name, *times, f"{float(cosines.min()):.4f}", f"{float(cosines.mean()):.4f}")
    return table


def _seconds(loader: object) -> float:
    start = perf_counter()
    for _ in loader:  # type: ignore[attr-defined]
        pass
    return perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--sides", type=int, nargs="+", default=[224, 64])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for side in given.sides:
        Console().print(measure(open_images(given.folder), given.images, side, given.repeats))
