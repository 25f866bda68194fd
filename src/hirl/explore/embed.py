"""Embeds images into arrays in a file: an encoder's pooled features, and a run's z⁰…zᴸ and paths through its tree."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hirl.data.sources.image_set import ImageSet
from hirl.features.embedding import embed_images
from hirl.features.extractor import Extractor
from hirl.features.feature_cache import FeatureCache
from hirl.features.feature_files import Arrays, check_target, write_features
from hirl.features.image_request import request_images
from hirl.features.open_encoder import open_encoder
from hirl.features.preprocessing import check_preprocessing, describe, find_device, preprocessing_for
from hirl.methods.base import Method
from hirl.terminal.progress import Progress, no_progress, progress_bars


def embed(
    subject: Any,
    data: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    split: str | None = None,
    backbone: str | None = None,
    backbone_args: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    method: str | type[Method] | None = None,
    device: str | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> Arrays:
    """Embed images with an encoder, write them to `out` if it is given, and return them as arrays by name.

    image     (N,) the path of each image
    readable  (N,) whether it could be read; if not, its features and z are NaN and its path is −1
    features  (N, width) of the encoder
    z0 … zL   (N, D) of the method's head and of the heads of the levels; for runs only, and for a baseline only z0
    path      (N, L) nodes of the run's tree, fine → coarse, if there is a tree; with tree_levels, (L,) its nodes per
              level, and tree_parents_0 …, the parent of each node of a level except the last
    labels    (N, levels), the finest first, and classes_0 …, the class names of each level, if there are labels

    Args:
        subject: A run, its folder or checkpoint, a file of weights, a timm name or `torchvision:NAME` for its published
            weights, either after `random:` for random ones, a module, or an encoder that is open already.
        data: The images; by default those the run was trained on.
        out: The file, in the format that its name ends in (`hirl.features.feature_files`); a .parquet file has a row
            per image, with its classes by name, and the rest in its metadata.
        split: The split of the data; by default its training split.
        backbone: The network's timm or torchvision name, for a file of weights that does not name it.
        backbone_args: Further arguments of the timm or torchvision network.
        weights: A file of weights for a network given by name; by default its published ones.
        image_size: Side of the images in pixels; by default the run's, else that of small images, else 224; with
            published weights at least 96, and at most theirs.
        channels: Channels of the images; by default the run's, else 3.
        mean: Subtracted from each channel, in [0, 1]; by default as in the encoder's training, else ImageNet's.
        std: Divides each channel.
        method: The class of the run's method, if it is not part of hirl.
        device: cpu, cuda …; by default a GPU if there is one.
        workers: Processes that read images.
        quiet: Print no progress.
    """
    target = None if out is None else Path(out)
    if target is not None:
        check_target(target)
    with nullcontext(no_progress) if quiet else progress_bars() as progress:
        extractor, images = open_extractor(
            subject,
            data,
            split=split,
            backbone=backbone,
            backbone_args=backbone_args,
            weights=weights,
            image_size=image_size,
            channels=channels,
            mean=mean,
            std=std,
            method=method,
            device=device,
            workers=workers,
            progress=progress,
            quiet=quiet,
        )
        arrays = embed_images(extractor, images).arrays(images)
    if target is not None:
        write_features(target, arrays)
    return arrays


def open_extractor(
    subject: Any,
    data: Any = None,
    *,
    split: str | None = None,
    backbone: str | None = None,
    backbone_args: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    method: str | type[Method] | None = None,
    device: str | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
    quiet: bool = True,
) -> tuple[Extractor, ImageSet]:
    """The encoder, ready to embed, and the images; the arguments are those of `embed`."""
    network: dict[str, Any] = {"backbone": backbone, "backbone_args": backbone_args, "weights": weights}
    encoder = open_encoder(subject, **network, channels=channels, method=method)
    run = encoder.run
    if method is not None and run is None:
        raise ValueError(f"method is {method!r}, but must not be given here: only a run has one")
    check_preprocessing(encoder, image_size=image_size, channels=channels, mean=mean, std=std)
    images = request_images(encoder, data, split=split, channels=channels).train()
    preprocessing = preprocessing_for(
        encoder, images, image_size=image_size, mean=mean, std=std, device=find_device(device), workers=workers
    )
    if encoder.provenance is not None and not quiet:
        print(describe(encoder, preprocessing))
    cache = FeatureCache(None if run is None else run.features_folder)
    return Extractor(encoder, preprocessing, cache, method=method, progress=progress), images
