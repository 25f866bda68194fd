"""Samples of the training images, class by class: a function of labels, share and seed alone.

With the same seed, a larger share contains the smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import torch
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.data.views.draws import permutation
from hirl.hierarchy.groups import place_in_group
from hirl.seeds import SAMPLING_EPOCH


def class_balanced(labels: Tensor, share: float, *, seed: int, names: Sequence[str]) -> Tensor:
    """Indices, ascending: the same number of every class, at least one, `share` of all images together.

    `labels` is (N,); `names` are those of the classes. A share of 1 is all images, whatever the sizes of the classes.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}, but must be above 0 and at most 1")
    counts = torch.bincount(labels, minlength=len(names))
    each = max(1, round(share * len(labels) / len(names)))
    fewest = int(counts.min())
    if share == 1 and fewest > 0:
        return torch.arange(len(labels))
    if fewest < each:
        short = names[int(counts.argmin())]
        raise ValueError(
            f"a share of {share:g} takes {each} training images of each class, but class {short!r} has {fewest}"
            + (f": choose a share of at most {fewest * len(names) / len(labels):.2g}" if fewest else "")
        )
    return (_place_in_class(labels, seed) < each).nonzero().flatten()


def held_out(labels: Tensor, share: float, *, seed: int) -> Tensor:
    """(N,) bool: about `share` of every class, at least one image where the class has two."""
    counts = torch.bincount(labels)
    some = (counts * share).round().clamp(min=1).minimum(counts - 1)  # (classes,)
    return _place_in_class(labels, seed) < some[labels]


def _place_in_class(labels: Tensor, seed: int) -> Tensor:
    """(N,): the image's rank, from 0, in a random order of its class."""
    order = torch.from_numpy(permutation(seed, SAMPLING_EPOCH, len(labels)))
    return place_in_group(labels, order)


def find_listed(images: ImageSet, wanted: Sequence[str]) -> Tensor:
    """Indices, ascending, of the images with these file names; a name may include the end of the path."""
    names = [PurePath(name.strip()).parts for name in wanted if name.strip()]
    if not names:
        raise ValueError("the list of files is empty, but must name at least one training image")
    lengths = {len(parts) for parts in names}
    places: dict[tuple[str, ...], list[int]] = {parts: [] for parts in names}
    for index in range(len(images)):
        path = PurePath(images.path(index)).parts
        for length in lengths:
            if path[-length:] in places:
                places[path[-length:]].append(index)
    for fault, bad in (
        (f"not in {images.name}", [parts for parts, found in places.items() if not found]),
        (f"in {images.name} more than once", [parts for parts, found in places.items() if len(found) > 1]),
    ):
        if bad:
            raise ValueError(
                f"{len(bad)} of the {len(places)} listed files are {fault} ({'/'.join(bad[0])!r} is one): "
                "the list must name each image once, by its file name or the end of its path"
            )
    return torch.tensor(sorted(found[0] for found in places.values()))
