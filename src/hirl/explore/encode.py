"""Features of a few images that are not in a collection, made by its encoder as those of the collection were.

Small images must be read into memory if those of the collection were: images in memory and images in files are resized
in different ways.
"""

from __future__ import annotations

from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.extractor import Extractor, preprocessing_for
from hirl.evals.feature_cache import FeatureCache
from hirl.methods.base import Method
from hirl.runs.open_encoder import Encoder, find_device
from hirl.terminal.progress import no_progress


def encode_features(encoder: Encoder, images: ImageSet, *, device: str | None = None) -> Tensor:
    """(n, width): the encoder's pooled features."""
    return _extractor(encoder, images, None, device).features(images)


def encode_representations(
    encoder: Encoder, images: ImageSet, *, method: str | type[Method] | None = None, device: str | None = None
) -> Tensor:
    """(n, 1 + L, D): z⁰ … zᴸ."""
    return _extractor(encoder, images, method, device).representations(images)


def _extractor(encoder: Encoder, images: ImageSet, method: str | type[Method] | None, device: str | None) -> Extractor:
    preprocessing = preprocessing_for(encoder, images, device=find_device(device), workers=0)
    return Extractor(encoder, preprocessing, FeatureCache(None), method=method, progress=no_progress)
