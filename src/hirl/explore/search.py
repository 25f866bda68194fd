"""Finds the images nearest to a query in z⁰ … zᴸ: the same object at fine levels, the same kind at coarse ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hirl.data.sources import in_memory
from hirl.data.sources.file_images import open_files
from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.explore.collection import Collection
from hirl.features.extractor import Extractor
from hirl.features.preprocessing import find_device, preprocessing_for
from hirl.methods.base import Method
from hirl.metrics.neighbours import nearest_rows

NO_ENCODER = (
    "a file of features cannot be searched with an image, since it does not name the encoder that computed them: give "
    "the folder of images or the run they come from"
)


@dataclass(frozen=True)
class FoundImages:
    """The nearest images at one level, most similar first: their indices in the collection, and cosines."""

    level: int
    images: list[int]
    similarity: list[float]


def open_query(file: str | os.PathLike[str], *, channels: int) -> ImageSet:
    """One image file as a set of images; raises a ValueError if it is missing or unreadable."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"there is no image {str(path)!r} to search for")
    query = open_files([str(path)], name=str(path), channels=channels)
    try:
        query.read(0)
    except BadImage as bad:
        raise ValueError(f"{str(path)!r} cannot be searched for: {bad.reason}") from bad
    return query


def query_representations(
    collection: Collection, query: ImageSet, *, method: str | type[Method] | None = None, device: str | None = None
) -> Tensor:
    """(1 + L, D): z⁰ … zᴸ of the query, computed as for the collection; its features if there is no run."""
    encoder = collection.encoder
    if encoder is None:
        raise ValueError(NO_ENCODER)
    if collection.images.pixels is not None:  # images in memory are resized differently from files
        query = in_memory(query)
    size = encoder.default_size(collection.images)
    preprocessing = preprocessing_for(encoder, query, image_size=size, device=find_device(device), workers=0)
    extractor = Extractor(encoder, preprocessing, method=method)
    return extractor.representations(query)[0] if encoder.has_heads else extractor.features(query)


def different_levels(collection: Collection) -> list[int]:
    """Level 0 (z⁰) and the levels whose z differs from z⁰; without heads, as in an adapted run, none does."""
    z = collection.z
    return [level for level in range(len(z)) if level == 0 or not torch.equal(z[level], z[0])]


def search(
    collection: Collection, z: Tensor, levels: list[int], *, count: int, without: Path | None = None
) -> list[FoundImages]:
    """The `count` nearest images to a query z (1 + L, D) at each of the levels.

    `without`: a file to leave out, the query itself, if it is one of the collection.
    """
    for level in levels:
        if not 0 <= level < len(z):
            choices = "only z0" if len(z) == 1 else f"z0 to z{len(z) - 1}"
            raise ValueError(f"there is no level {level}: the collection has {choices}")
    if count < 1:
        raise ValueError(f"count is {count}, but must be at least 1")
    itself = None
    if without is not None:
        same_name = (index for index, path in enumerate(collection.paths) if path.rpartition("/")[2] == without.name)
        itself = next(
            (one for one in same_name if Path(collection.images.path(one)).resolve() == without.resolve()), None
        )
    found = []
    for level in levels:
        k = min(count + (itself is not None), len(collection))
        nearest = next(nearest_rows(collection.z[level], z[level][None], k))
        pairs = zip(nearest.rows[0].tolist(), nearest.similar[0].tolist(), strict=True)
        kept = [(image, similar) for image, similar in pairs if image != itself][:count]
        found.append(FoundImages(level, [image for image, _ in kept], [similar for _, similar in kept]))
    return found


def search_report(collection: Collection, query: str, z: Tensor, found: list[FoundImages]) -> dict[str, Any]:
    """The results of a search as plain data for JSON."""
    tree = collection.tree
    path = tree.path(tree.assign(z[0][None]))[0].tolist()
    levels = []
    for one in found:
        images = [
            {"file": collection.images.path(image), "row": int(collection.rows[image]), "cosine": round(cosine, 6)}
            for image, cosine in zip(one.images, one.similarity, strict=True)
        ]
        levels.append({"level": one.level, "images": images})
    return {"query": query, "path": path, "levels": levels}
