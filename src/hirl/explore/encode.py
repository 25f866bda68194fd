"""Features of a few images that are not in a collection, made by its run as those of the collection were.

Small images must be read into memory if those of the collection were: images in memory and images in files are resized
in different ways.
"""

from __future__ import annotations

from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.extractor import Extractor, preprocessing_for
from hirl.evals.feature_cache import FeatureCache
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.runs.open_encoder import find_device, open_encoder
from hirl.terminal.progress import no_progress


def encode_features(run: Run, images: ImageSet, *, device: str | None = None) -> Tensor:
    """(n, width): the encoder's pooled features."""
    return _extractor(run, images, None, device).features(images)


def encode_representations(
    run: Run, images: ImageSet, *, method: str | type[Method] | None = None, device: str | None = None
) -> Tensor:
    """(n, 1 + L, D): z⁰ … zᴸ."""
    return _extractor(run, images, method, device).representations(images)


def input_size(run: Run) -> int:
    """The side of the images the run's encoder takes."""
    size = open_encoder(run).image_size
    assert size is not None  # an encoder of a run knows it
    return size


def _extractor(run: Run, images: ImageSet, method: str | type[Method] | None, device: str | None) -> Extractor:
    encoder = open_encoder(run)
    preprocessing = preprocessing_for(encoder, images, device=find_device(device), workers=0)
    return Extractor(encoder, preprocessing, FeatureCache(None), method=method, progress=no_progress)
