"""Level sizes of a tree: which are valid, and which suit a number of images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import SupportsIndex

# Sec. 4.1 of the paper: 1,281,167 ImageNet images carry 30,000 leaves, three leaves per node, ten nodes per root.
LEAVES_PER_NODE, NODES_PER_ROOT = 3, 10
FEWEST = 4  # images of a hierarchy
# Images per leaf: 10 at 1,000 images and 42.7 at ImageNet's size; a power law through the two.
SMALL_SET, SMALL_SET_PER_LEAF, GROWTH = 1_000, 10.0, 0.20286


class Levels(tuple[int, ...]):
    """A tuple of level sizes, fine → coarse, with the reason for them in `why`."""

    why: str

    def __new__(cls, sizes: Iterable[int], why: str) -> Levels:
        levels = super().__new__(cls, tuple(sizes))
        levels.why = why
        return levels

    def __getnewargs__(self) -> tuple[tuple[int, ...], str]:
        return tuple(self), self.why


def levels_by_number(N: int) -> Levels:
    """Return level sizes, fine → coarse, for N images: the paper's (30000, 10000, 1000) at ImageNet's 1.28 million.

    Smaller sets get fewer images per leaf, so that the tree keeps enough leaves to distinguish images; levels that
    would have a single node are left out.
    """
    if not isinstance(N, SupportsIndex):
        raise ValueError(f"N, the number of images, is {N!r}, but must be a whole number such as 1000")
    count = int(N)
    if count < FEWEST:
        raise ValueError(f"a hierarchy needs at least {FEWEST} images, not {N!r}")
    per_leaf = max(2.0, SMALL_SET_PER_LEAF * (count / SMALL_SET) ** GROWTH)
    leaves = max(2, _two_digits(count / per_leaf))
    wanted = (
        leaves,
        _two_digits(leaves / LEAVES_PER_NODE),
        _two_digits(leaves / LEAVES_PER_NODE / NODES_PER_ROOT),
    )
    sizes = [leaves, *(size for size in wanted[1:] if size >= 2)]
    why = f"{count:,} images, about {count / leaves:.0f} per leaf: {leaves:,} leaves"
    kinds = ("leaves per node", "nodes per root")
    ratios = [f"{finer / coarser:.0f} {kind}" for (finer, coarser), kind in zip(pairwise(sizes), kinds, strict=False)]
    if ratios:
        paper = " and ".join(map(str, (LEAVES_PER_NODE, NODES_PER_ROOT)[: len(ratios)]))
        why += f"; about {' and '.join(ratios)}, in the paper {paper}"
    return Levels(sizes, why)


def check_levels(levels: Sequence[int], N: int | None = None) -> tuple[int, ...]:
    """Return `levels` as a tuple of ints, or raise a ValueError that names the rule they break."""
    if isinstance(levels, (str, bytes)) or not isinstance(levels, Iterable):
        raise ValueError(f"levels is {levels!r}, but must be sizes, fine to coarse, such as (3000, 300, 30)")
    sizes = tuple(int(size) if isinstance(size, SupportsIndex) else size for size in levels)
    if not sizes:
        raise ValueError("levels must name at least one level, such as (3000, 300, 30)")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"levels must be whole numbers of at least 1, not {size!r} in {sizes}")
    for finer, coarser in pairwise(sizes):
        if coarser >= finer:
            raise ValueError(f"levels must decrease from fine to coarse, but {coarser} follows {finer} in {sizes}")
    if N is not None and sizes[0] > N:
        fitting = f"; {tuple(levels_by_number(N))} would fit" if N >= FEWEST else ""
        raise ValueError(
            f"levels {sizes} ask for {sizes[0]} clusters of only {N} rows: there must be a row per cluster{fitting}"
        )
    return sizes


def _two_digits(value: float) -> int:
    """Round `value` to two significant digits, so that the sizes read well."""
    return int(float(f"{value:.1e}"))
