"""Copies among images: files of the same bytes, images of the same pixels, and near duplicates.

Two images are near duplicates if the cosine of their pooled features reaches a threshold and their details agree, or
if their details agree so well that features are not needed. `copy_threshold` measures the threshold. Details guard
against an encoder that confuses different images, since users may delete what is reported as a copy; and they find
copies that a weak encoder misses, such as those cropped by 5 %.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.explore.collection import Collection
from hirl.explore.copy_cache import kept_details
from hirl.explore.readable import reading_threads
from hirl.explore.same_file import other_paths
from hirl.explore.thumbnails import thumbnail
from hirl.terminal.progress import Progress, no_progress

Kind = Literal["bytes", "pixels", "near"]
Rule = Literal["features", "details"]

# Details are compared at 24 × 24 pixels with low frequencies removed, at the best of a few crops. With 300 photos, 98 %
# of the altered copies agree by more than 0.97, and nearest neighbours that are not copies by less than 0.5. Among all
# pairs of 1,200 photos of groceries, 10 copies cropped by 5 % agree by 0.995 or more, other pairs by 0.91 at most.
DETAIL, BLUR, CROPS = 24, 2, (0.0, 0.015, 0.03, 0.045, 0.06)
AGREEMENT, CERTAIN = 0.88, 0.98
FAINT = 1.0  # grey levels of 255: an image whose details deviate by less counts as blank, since they are noise
CHUNK = 1 << 24  # cosines computed at a time
MOST_PAIRS = 50  # per image on average; with more, the features do not distinguish images
INDISTINCT = "as the features do not tell images from each other"


class Indistinct(ValueError):  # noqa: N818
    """The features do not tell images from each other."""


@dataclass(frozen=True)
class Copy:
    """A copy of the image that its group keeps; `cosine` and `details`, their agreement, are between the two.

    `by` is the rule that found a near duplicate: the cosine of features and details together, or details alone.
    """

    image: int
    kind: Kind
    cosine: float
    details: float = 1.0
    by: Rule = "features"


@dataclass(frozen=True)
class DuplicateGroup:
    """A group: the image to keep, and its copies."""

    keep: int
    copies: tuple[Copy, ...]


def check_threshold(threshold: float) -> None:
    """Raise a ValueError unless it is a cosine; to be called before features are computed."""
    if not -1 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}, but must be a cosine, between -1 and 1")


class Duplicates(NamedTuple):
    """The groups of copies, the largest first; other paths to the file of an image, which are left out."""

    groups: list[DuplicateGroup]
    links: set[int]
    by_features: bool  # whether features were compared


def find_duplicates(
    collection: Collection, threshold: float | None, *, fall_back: bool = False, progress: Progress = no_progress
) -> Duplicates:
    """Groups of copies. Each keeps an image in colour if any, then of most pixels, then most bytes.

    Every image of a group is a copy of the kept one itself, not only of another copy. Without a threshold, features are
    not compared. If they do not tell images apart, Indistinct is raised, or with `fall_back` they are not compared.
    """
    if threshold is not None:
        check_threshold(threshold)
    images = collection.images
    links = other_paths(images)
    same_bytes = _same_bytes(images, links)
    firsts = [image for image in range(len(images)) if image not in links and same_bytes.get(image, image) == image]
    try:
        pairs = None if threshold is None else _pairs(collection.features, firsts, threshold, progress)
    except Indistinct:
        if not fall_back:
            raise
        pairs = None
    compute = partial(_all_details, images, progress=progress)
    details = kept_details(collection.cache, images, firsts, compute)
    rows = {image: row for row, image in enumerate(firsts)}
    near: dict[int, dict[int, float]] = defaultdict(dict)
    for (a, b), cosine in (pairs or {}).items():
        one, other = details[rows[a]], details[rows[b]]
        # Blank images have no details to compare, but may have the same pixels.
        if not one.any() or not other.any() or _agreement(one, other) >= AGREEMENT:
            near[a][b] = near[b][a] = cosine
    certain = _has_certain_copy(details, progress).nonzero().flatten().tolist()
    pixel_stats = {image: _pixel_stats(images, image) for image in sorted({*near, *(firsts[row] for row in certain)})}
    candidates = _Candidates(collection.features, details, rows, near, pixel_stats)
    return Duplicates(_groups(images, same_bytes, candidates, progress), links, pairs is not None)


def _same_bytes(images: ImageSet, links: set[int]) -> dict[int, int]:
    """The first file with the same bytes, for every file that has a byte-for-byte copy (itself for the first)."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for index in range(len(images)):
        path = Path(images.path(index))
        if index not in links and path.is_file():
            by_size[path.stat().st_size].append(index)
    first: dict[int, int] = {}
    for alike in by_size.values():
        if len(alike) > 1:
            found: dict[bytes, list[int]] = defaultdict(list)
            for index in alike:
                found[hashlib.sha256(Path(images.path(index)).read_bytes()).digest()].append(index)
            first |= {index: group[0] for group in found.values() if len(group) > 1 for index in group}
    return first


def _pairs(features: Tensor, chosen: list[int], threshold: float, progress: Progress) -> dict[tuple[int, int], float]:
    """All pairs of the chosen rows whose cosine reaches the threshold, with that cosine."""
    rows = torch.tensor(chosen)
    unit = F.normalize(features[rows].float(), dim=1)
    step = max(1, CHUNK // max(1, len(unit)))
    pairs: dict[tuple[int, int], float] = {}
    for start in range(0, len(unit), step):
        cosines = unit[start : start + step] @ unit[start:].T  # the lower triangle is not needed
        near = (cosines >= threshold).nonzero()
        near = near[near[:, 1] > near[:, 0]]
        values = cosines[near[:, 0], near[:, 1]].clamp(max=1)
        if len(pairs) + len(near) > MOST_PAIRS * len(unit):
            raise Indistinct(
                f"on average more than {MOST_PAIRS} other images per image reach the threshold of {threshold:.4f}: the "
                "features do not distinguish images; give a higher --threshold or train longer"
            )
        left, right = rows[near[:, 0] + start].tolist(), rows[near[:, 1] + start].tolist()
        pairs |= zip(zip(left, right, strict=True), values.tolist(), strict=True)
        progress("comparing features", min(start + step, len(unit)), len(unit))
    return pairs


def _all_details(images: ImageSet, chosen: list[int], progress: Progress) -> Tensor:
    """(n, crops, DETAIL²) in half precision: the details of the chosen images at each crop."""
    details = torch.empty(len(chosen), len(CROPS), DETAIL**2, dtype=torch.float16)
    with ThreadPoolExecutor(reading_threads()) as pool:
        for row, found in enumerate(pool.map(lambda image: _image_details(images, image), chosen)):
            details[row] = found
            progress("details", row + 1, len(chosen))
    return details


def _image_details(images: ImageSet, index: int) -> Tensor:
    picture = thumbnail(images, index, 3 * DETAIL)
    return torch.from_numpy(np.stack([_details(picture, crop) for crop in CROPS]))


def _details(picture: Image.Image, crop: float) -> np.ndarray:
    """(DETAIL²,) of unit length; 0 for an image that counts as blank."""
    side = picture.width
    box = (crop * side, crop * side, side - crop * side, side - crop * side)
    small = picture.convert("L").resize((DETAIL, DETAIL), Image.Resampling.LANCZOS, box=box)
    blurred = small.filter(ImageFilter.GaussianBlur(BLUR))
    details = (np.asarray(small, dtype=np.float64) - np.asarray(blurred, dtype=np.float64)).ravel()
    details -= details.mean()
    length = float(np.linalg.norm(details))
    return details / length if length >= FAINT * DETAIL else np.zeros_like(details)


def _agreement(one: Tensor, other: Tensor) -> float:
    """The best agreement between the details (crops, DETAIL²) of two images, with at most one of them cropped."""
    one, other = one.float(), other.float()
    return max(float((other @ one[0]).max()), float((one @ other[0]).max()))


def _has_certain_copy(details: Tensor, progress: Progress) -> Tensor:
    """(n,): whether the details of an image alone show that it is a copy of another one, or that one of it."""
    plain = details[:, 0].float()
    step = max(1, CHUNK // max(1, len(plain)))
    found = torch.zeros(len(plain), dtype=torch.bool)
    for start in range(0, len(plain), step):
        stop = min(start + step, len(plain))
        for cropped in details[start:stop].unbind(1):
            certain = cropped.float() @ plain.T >= CERTAIN
            certain.diagonal(start).fill_(value=False)  # itself
            found[start:stop] |= certain.any(1)
            found |= certain.any(0)
        progress("comparing details", stop, len(plain))
    return found


@dataclass(frozen=True)
class _PixelStats:
    """Properties of an image's pixels: whether it has colours, their number, and their hash."""

    colour: bool
    pixels: int
    hash: bytes


def _pixel_stats(images: ImageSet, index: int) -> _PixelStats:
    image = images.read(index)
    digest = hashlib.sha256(repr(tuple(image.shape)).encode() + np.ascontiguousarray(image.numpy()).tobytes()).digest()
    colour = len(image) == 3 and not bool((image == image[:1]).all())
    return _PixelStats(colour, image.shape[-1] * image.shape[-2], digest)


@dataclass(frozen=True)
class _Candidates:
    """Images that may have copies.

    Pairs that features find are few (`MOST_PAIRS`). Those that details find are compared anew when they are needed: of
    a large group, such as the frames of a fixed camera, all pairs would not fit into memory.
    """

    features: Tensor
    details: Tensor  # (n, crops, DETAIL²)
    rows: dict[int, int]  # of an image in `details`
    near: dict[int, dict[int, float]]  # the cosines of pairs that features find
    pixel_stats: dict[int, _PixelStats]

    def certain(self, some: list[int], others: list[int]) -> Tensor:
        """(some, others): whether details alone show that they are copies."""
        one, other = (torch.tensor([self.rows[image] for image in images]) for images in (some, others))
        found = torch.zeros(len(one), len(other), dtype=torch.bool)
        for crop in range(len(CROPS)):
            found |= self.details[one, crop].float() @ self.details[other, 0].float().T >= CERTAIN
            found |= self.details[one, 0].float() @ self.details[other, crop].float().T >= CERTAIN
        return found

    def copy(self, kept: int, image: int) -> Copy | None:
        """The image as a copy of the kept one; None if only features say so."""
        agreement = _agreement(self.details[self.rows[kept]], self.details[self.rows[image]])
        same = self.pixel_stats[kept].hash == self.pixel_stats[image].hash
        cosine = self.near.get(kept, {}).get(image)
        if cosine is None:
            one, other = self.features[kept].float(), self.features[image].float()
            cosine = float(F.cosine_similarity(one, other, dim=0).clamp(max=1))
            return Copy(image, "pixels" if same else "near", cosine, agreement, "details")
        return Copy(image, "pixels" if same else "near", cosine, agreement) if same or agreement >= AGREEMENT else None


def _groups(
    images: ImageSet, same_bytes: dict[int, int], candidates: _Candidates, progress: Progress
) -> list[DuplicateGroup]:
    """Groups around the best image each: the best of all takes its copies, then the best of the rest, and so on."""
    repeats: dict[int, list[int]] = defaultdict(list)
    for image, first in same_bytes.items():
        if image != first:
            repeats[first].append(image)
    pixel_stats = candidates.pixel_stats

    def rank(image: int) -> tuple[bool, int, int, int]:
        path, stats = Path(images.path(image)), pixel_stats.get(image)
        size = path.stat().st_size if path.is_file() else 0
        return (stats is not None and not stats.colour, 0 if stats is None else -stats.pixels, -size, image)

    waiting = sorted({*pixel_stats, *repeats}, key=rank)
    taken: set[int] = set()
    groups = []
    count = len(waiting)
    while waiting:
        block = waiting[: max(1, CHUNK // len(waiting))]
        for best, certain in zip(block, candidates.certain(block, waiting), strict=True):
            if best in taken:
                continue
            taken.add(best)
            copies = [Copy(image, "bytes", 1.0) for image in repeats.get(best, [])]
            others = {waiting[place] for place in certain.nonzero().flatten().tolist()}
            others |= candidates.near.get(best, {}).keys()
            known = [one for one in others if one in pixel_stats and one not in taken] if best in pixel_stats else []
            found = [candidates.copy(best, other) for other in known]
            for copy in sorted(filter(None, found), key=lambda copy: (-copy.cosine, copy.image)):
                taken.add(copy.image)
                copies += [replace(copy, image=image) for image in (copy.image, *repeats.get(copy.image, []))]
            if copies:
                groups.append(DuplicateGroup(best, tuple(copies)))
        waiting = [image for image in waiting if image not in taken]
        progress("grouping copies", count - len(waiting), count)
    return sorted(groups, key=lambda group: (-len(group.copies), group.keep))
