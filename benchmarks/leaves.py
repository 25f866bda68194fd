"""Whether leaves are as even and as tight as those of K-means, on rows of known make, with and without clusters.

    python -m benchmarks.leaves --seeds 0 1 --out leaves

For each way to build a tree of 600, 200 and 20 nodes over 6,000 rows: the share of leaves with a single row, and the
mean cosine of a row to the mean direction of its leaf, both in %, as mean over seeds. `benchmarks.trees` has the same
two figures for features of images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from benchmarks.trees import FLAT, TREES, shape_of
from hirl.terminal.tables import print_tables, write_tables

N, LEVELS = 6000, (600, 200, 20)


def isotropic(rank: int) -> Callable[[Generator], Tensor]:
    """No clusters at all."""
    return lambda generator: torch.randn(N, rank, generator=generator)


def nested_classes(generator: Generator) -> Tensor:
    """20 groups of 10 classes each, in 128 dimensions."""

    def directions(count: int) -> Tensor:
        return F.normalize(torch.randn(count, 128, generator=generator), dim=1)

    classes = directions(20).repeat_interleave(10, 0) + 0.6 * directions(200)
    return classes[torch.randint(200, (N,), generator=generator)] + 0.5 * directions(N)


def power_law(generator: Generator) -> Tensor:
    """A spectrum that falls as 1/k, as that of pretrained networks' features roughly does."""
    return torch.randn(N, 256, generator=generator) * torch.arange(1, 257).float() ** -0.5


SETS = {
    "isotropic, rank 8": isotropic(8),
    "isotropic, rank 32": isotropic(32),
    "isotropic, rank 128": isotropic(128),
    "nested classes": nested_classes,
    "power law": power_law,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("leaves"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    columns = {"tree": [*TREES, *FLAT]}
    for name, draw in SETS.items():
        columns[name] = []
        drawn = {seed: draw(torch.Generator().manual_seed(seed)) for seed in given.seeds}
        for tree, build in (TREES | FLAT).items():
            sizes = LEVELS[:1] if tree in FLAT else LEVELS
            found = [shape_of(rows, build(rows, sizes, seed=seed)) for seed, rows in drawn.items()]
            columns[name].append(", ".join(f"{mean(values):.1f}" for values in zip(*found, strict=True)))
        tables = {"leaves": [[*columns], *map(list, zip(*columns.values(), strict=True))]}
        write_tables(given.out, tables)
    print_tables(tables)


if __name__ == "__main__":
    main()
