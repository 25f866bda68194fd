"""A balanced, diverse part of a collection, drawn through its tree: equal shares at the top, then downwards."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.explore.collection import Collection
from hirl.hierarchy.tree import PrototypeTree

Pick = Literal["typical", "spread", "unsure"]
PICKS = get_args(Pick)
COPY = 1 - 1e-5  # cosine of z⁰ from which on two images count as copies: the same pixels in other batches, rounded


def sample_images(collection: Collection, size: int, *, pick: Pick = "typical", seed: int = 0) -> list[int]:
    """The indices of `size` images of the collection, in order of their branches.

    Every node divides its share equally among its children, as far as they have images; what does not divide evenly
    goes to the largest of them, since a small sample should show what is common, and `seed` decides
    between children of one size. A leaf gives its most typical images (`pick` typical), images far from each other, of
    which the first is its most typical (spread), or those that nearly belong to another leaf (unsure). A copy of an
    image that was chosen, equally typical, comes after all others of the leaf. A larger sample is not a superset of a
    smaller one.
    """
    if pick not in PICKS:
        raise ValueError(f"pick is {pick!r}, but must be one of {', '.join(PICKS)}")
    if not 1 <= size <= len(collection):
        raise ValueError(f"size is {size}, but must be at least 1 and at most the {len(collection):,} readable images")
    if seed < 0:
        raise ValueError(f"seed is {seed}, but must be at least 0")
    shares = leaf_shares(collection.tree, size, seed=seed)
    tree = collection.tree
    first = -tree.margins(collection.z[0], tree.leaves) if pick == "unsure" else collection.typicality()
    chosen: list[int] = []
    by_leaf = _members(collection.tree)
    for leaf, share in shares.items():
        images = by_leaf[leaf]
        images = images[first[images, 0].argsort(descending=True, stable=True)]
        take = _spread if pick == "spread" else _first
        chosen += take(collection.z[0], images, share).tolist()
    return chosen


def leaf_shares(tree: PrototypeTree, size: int, *, seed: int) -> dict[int, int]:
    """How many images each leaf gives, in the order of the tree; leaves that give none are left out."""
    random = np.random.default_rng(seed)
    sizes = [tree.sizes(level) for level in range(len(tree.levels))]
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


def _members(tree: PrototypeTree) -> list[Tensor]:
    """The images of every leaf."""
    order = tree.leaves.argsort(stable=True)
    return list(order.split(tree.sizes(0).tolist()))


def _first(z0: Tensor, images: Tensor, share: int) -> Tensor:
    """The first images that are no copies of those chosen before them; then copies, if there are no others."""
    unit = F.normalize(z0[images].float(), dim=1)
    chosen: list[int] = [0]
    copies: list[int] = []
    for place in range(1, len(images)):
        if len(chosen) == share:
            break
        (copies if (unit[chosen] @ unit[place]).max() > COPY else chosen).append(place)
    return images[torch.tensor((chosen + copies)[:share])]


def _spread(z0: Tensor, images: Tensor, share: int) -> Tensor:
    """Farthest first: each next image is the one least like those chosen before it."""
    unit = F.normalize(z0[images].float(), dim=1)
    chosen = [0]
    nearest = unit @ unit[0]
    while len(chosen) < share:
        nearest[chosen[-1]] = torch.inf
        following = int(nearest.argmin())
        chosen.append(following)
        nearest = torch.maximum(nearest, unit @ unit[following])
    return images[torch.tensor(chosen)]
