"""The cosine of features from which two images may be near duplicates, measured with the collection's encoder.

95 % of the cosines between images of the collection and mildly altered copies of them (recompressed, halved in size,
brightened, slightly cropped) reach it.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch import Tensor

from hirl.data.sources.arrays import ArrayImages
from hirl.explore.collection import Collection
from hirl.explore.copy_cache import kept_threshold, threshold_key
from hirl.explore.thumbnails import thumbnail
from hirl.features.extractor import Extractor
from hirl.features.open_encoder import Encoder
from hirl.features.preprocessing import find_device, preprocessing_for
from hirl.terminal.progress import Progress, no_progress

MEASURED = 100  # images that are altered to find the threshold
MEASURING = "features of altered copies, for the threshold"
REACHED = 0.95  # share of the altered copies whose cosine reaches the threshold


def measure_threshold(collection: Collection, *, device: str | None = None, progress: Progress = no_progress) -> float:
    """The cosine that 95 % of mildly altered copies reach with the collection's encoder; kept beside its features."""
    encoder = collection.encoder
    if encoder is None:
        raise ValueError("a file of features has no encoder to measure the threshold with: give it with --threshold")
    size = encoder.default_size(collection.images)
    random = np.random.default_rng(0)
    chosen = np.sort(random.choice(len(collection), min(MEASURED, len(collection)), replace=False)).tolist()
    return kept_threshold(
        collection.cache,
        threshold_key(collection, chosen, size),
        lambda: _measured(collection, encoder, chosen, size, device, progress),
    )


def _measured(
    collection: Collection, encoder: Encoder, chosen: list[int], size: int, device: str | None, progress: Progress
) -> float:
    channels = collection.images.channels
    steps = len(ALTERATIONS) + 1
    side = round(size * 256 / 224)
    originals = [thumbnail(collection.images, index, side) for index in chosen]

    def features(pictures: list[Image.Image]) -> Tensor:
        pixels = np.stack([np.asarray(picture.convert("RGB" if channels == 3 else "L")) for picture in pictures])
        tensor = torch.from_numpy(pixels.reshape(len(pictures), side, side, channels)).permute(0, 3, 1, 2).contiguous()
        altered = ArrayImages(name="altered copies", pixels=tensor)
        preprocessing = preprocessing_for(encoder, altered, image_size=size, device=find_device(device), workers=0)
        return Extractor(encoder, preprocessing).features(altered)

    before, cosines = features(originals), []
    for step, alter in enumerate(ALTERATIONS.values(), start=1):
        progress(MEASURING, step, steps)
        cosines.append(F.cosine_similarity(before, features([alter(one) for one in originals])))
    progress(MEASURING, steps, steps)
    return float(torch.quantile(torch.cat(cosines), 1 - REACHED))


def _recompressed(picture: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=50)
    return Image.open(buffer)


def _halved(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    return picture.resize((-(-width // 2), -(-height // 2)), Image.Resampling.LANCZOS).resize(
        picture.size, Image.Resampling.BICUBIC
    )


def _cropped(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    return picture.resize(
        picture.size, Image.Resampling.BICUBIC, box=(0.02 * width, 0.02 * height, 0.98 * width, 0.98 * height)
    )


ALTERATIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "recompressed as JPEG of quality 50": _recompressed,
    "halved in size": _halved,
    "brightened by 10 %": lambda picture: ImageEnhance.Brightness(picture).enhance(1.1),
    "cropped by 2 % at each edge": _cropped,
}
