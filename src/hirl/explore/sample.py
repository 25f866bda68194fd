"""A balanced, diverse subset of a collection, drawn through its tree: equal shares at the top, then downwards.

Copies count once: of a group of duplicates only the image that `hirl duplicates` keeps can be drawn. The size of a node
is its number of distinct images, and typicality is measured against the mean of the distinct images.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.explore.collection import Collection
from hirl.explore.copy_threshold import measure_threshold
from hirl.explore.duplicates import INDISTINCT, find_duplicates
from hirl.hierarchy.tree import PrototypeTree
from hirl.terminal.progress import Progress, no_progress

Pick = Literal["typical", "spread", "unsure"]
PICKS = get_args(Pick)
SAME = 1 - 1e-5  # cosine of features of the same pixels in other batches, rounded


def without_copies(
    collection: Collection, *, device: str | None = None, progress: Progress = no_progress
) -> tuple[Tensor, str]:
    """The images (n,) without the copies that `hirl duplicates` would drop and the links, and how copies were found.

    The features of a file come without an encoder to measure a threshold with: theirs must be equal but for rounding.
    """
    threshold = SAME
    if collection.encoder is not None:
        threshold = measure_threshold(collection, device=device, progress=progress)
    found = find_duplicates(collection, threshold, fall_back=True, progress=progress)
    how = "as hirl duplicates finds them" if found.by_features else f"by files and details alone, {INDISTINCT}"
    different = torch.ones(len(collection), dtype=torch.bool)
    different[[copy.image for group in found.groups for copy in group.copies]] = False
    different[list(found.links)] = False
    return different.nonzero().flatten(), how


def sample_images(
    collection: Collection, size: int, *, pick: Pick = "typical", seed: int = 0, images: Tensor | None = None
) -> list[int]:
    """The indices of `size` images of the collection, in order of their branches.

    Every node divides its share equally among its children, limited by their number of images; remainders go to the
    largest, since a small sample should show what is common, and `seed` decides between children of equal size. `pick`
    says which images of a leaf: the most typical, nearest to the mean of the leaf (typical); images far from each
    other, starting with the most typical (spread); or those that nearly belong to another leaf (unsure). A larger
    sample is not a superset of a smaller one.

    Args:
        images: Those to choose from, (n,); by default `without_copies`, so that copies are neither drawn nor counted.
    """
    if pick not in PICKS:
        raise ValueError(f"pick is {pick!r}, but must be one of {', '.join(PICKS)}")
    if seed < 0:
        raise ValueError(f"seed is {seed}, but must be at least 0")
    if not 1 <= size <= len(collection):
        raise ValueError(f"size is {size}, but must be at least 1 and at most the {len(collection):,} readable images")
    images = without_copies(collection)[0] if images is None else images
    if size > len(images):
        raise ValueError(
            f"size is {size}, but must be at most {len(images):,}: of the {len(collection):,} readable images, the "
            f"other {len(collection) - len(images):,} are copies of these, or links to them"
        )
    tree, leaves = collection.tree, collection.tree.leaves[images]
    rows = F.normalize(collection.z[0][images].float(), dim=1)
    first = -tree.margins(collection.z[0][images], leaves)[:, 0] if pick == "unsure" else _typicality(rows, leaves)
    chosen: list[int] = []
    for leaf, share in leaf_shares(tree, size, leaves, seed=seed).items():
        members = (leaves == leaf).nonzero().flatten()
        members = members[first[members].argsort(descending=True, stable=True)]
        chosen += images[_spread(rows, members, share) if pick == "spread" else members[:share]].tolist()
    return chosen


def _typicality(rows: Tensor, leaves: Tensor) -> Tensor:
    """(n,): the cosine between rows (n, D) of unit length and the mean of those of their leaf."""
    means = torch.zeros(int(leaves.max()) + 1, rows.shape[1]).index_add_(0, leaves, rows)
    return (rows * F.normalize(means, dim=1)[leaves]).sum(1)


def leaf_shares(tree: PrototypeTree, size: int, leaves: Tensor, *, seed: int) -> dict[int, int]:
    """How many of the images in these leaves (n,) each leaf gives, in the order of the tree, if any."""
    random = np.random.default_rng(seed)
    sizes = [path.bincount(minlength=count) for path, count in zip(tree.path(leaves).T, tree.levels, strict=True)]
    shares: dict[int, int] = {}

    def divide(level: int, nodes: list[int], share: int) -> None:
        parts = equal_shares([int(sizes[level][node]) for node in nodes], share, random)
        for node, part in zip(nodes, parts, strict=True):
            if part and level == 0:
                shares[node] = part
            elif part:
                divide(level - 1, tree.children(level, node).tolist(), part)

    top = len(tree.levels) - 1
    divide(top, list(range(tree.levels[top])), size)
    return shares


def equal_shares(sizes: list[int], total: int, random: np.random.Generator) -> list[int]:
    """`total` divided as equally as `sizes` allow; units left over go to the largest, drawn among equal ones."""
    assert total <= sum(sizes)
    shares = np.zeros(len(sizes), dtype=np.int64)
    room = np.array(sizes, dtype=np.int64)
    left = total
    while left:
        chosen = np.flatnonzero(room)
        each = left // len(chosen)
        if each == 0:
            largest = np.lexsort((random.permutation(len(chosen)), -np.array(sizes)[chosen]))
            chosen, each = chosen[largest[:left]], 1
        given = np.minimum(room[chosen], each)
        shares[chosen] += given
        room[chosen] -= given
        left -= int(given.sum())
    return shares.tolist()


def _spread(rows: Tensor, images: Tensor, share: int) -> Tensor:
    """Farthest first: each next image is the one least like those chosen before it."""
    unit = rows[images]
    chosen = [0]
    nearest = unit @ unit[0]
    while len(chosen) < share:
        nearest[chosen[-1]] = torch.inf
        following = int(nearest.argmin())
        chosen.append(following)
        nearest = torch.maximum(nearest, unit @ unit[following])
    return images[torch.tensor(chosen)]
