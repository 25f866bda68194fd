"""K-means against faiss, cold and warm, and the growth of its time and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.measure import THREADS, peak_mebibytes, seconds
from hirl import hierarchical_kmeans

N, D, M, ITERATIONS, NOISE = 100_000, 128, 3000, 20, 0.02


def features(N: int, D: int) -> Tensor:
    """Draw rows around 2,000 directions, overlapping like an encoder's features."""
    generator = torch.Generator().manual_seed(0)
    middle = torch.randn(2000, D, generator=generator)
    rows = middle[torch.randint(2000, (N,), generator=generator)] + 1.5 * torch.randn(N, D, generator=generator)
    return F.normalize(rows, dim=1)


def mean_distance(rows: Tensor, prototypes: Tensor) -> float:
    """Return the mean squared distance of unit rows to the nearest prototype."""
    best = torch.cat([(some @ prototypes.T).amax(1) for some in rows.split(1000)])
    return float((2 - 2 * best).mean())


def against_faiss() -> None:
    faiss.omp_set_num_threads(THREADS)
    rows = features(N, D)
    moved = F.normalize(rows + NOISE * torch.randn(N, D, generator=torch.Generator().manual_seed(1)), dim=1)
    found: dict[str, Tensor] = {}

    def run_faiss() -> None:
        kmeans = faiss.Kmeans(D, M, niter=ITERATIONS, spherical=True, max_points_per_centroid=N, seed=1)
        kmeans.train(rows.numpy())
        found["faiss"] = torch.from_numpy(np.array(kmeans.centroids))

    # tolerance 0: all iterations, like faiss
    first = hierarchical_kmeans(rows, (M,), iterations=ITERATIONS, tolerance=0)

    def run(name: str, of: Tensor, **options: Any) -> Callable[[], None]:
        def work() -> None:
            found[name] = hierarchical_kmeans(of, (M,), **options).prototypes[0]

        return work

    cold, cold_moved = "hirl, cold", "hirl, cold, moved rows"
    warm = "hirl, warm, moved rows"
    times = {
        "faiss": seconds(run_faiss, repeats=2),
        cold: seconds(run(cold, rows, iterations=ITERATIONS, tolerance=0), repeats=2),
        cold_moved: seconds(run(cold_moved, moved), repeats=2),
        warm: seconds(run(warm, moved, init=first), repeats=3),
    }
    title = f"K-means of N={N:,}, D={D}, M={M}, spherical; moved rows: {NOISE:.0%} noise per value, unit length again"
    table = Table(title=title, title_justify="left")
    for heading in ("run", "seconds", "faiss / this", "mean distance"):
        table.add_column(heading, justify="right")
    for name, taken in times.items():
        distance = mean_distance(moved if "moved" in name else rows, found[name])
        table.add_row(name, f"{taken:.2f}", f"{times['faiss'] / taken:.1f}×", f"{distance:.5f}")
    Console().print(table)


def prepared(N: int, M: int, D: int) -> Callable[[], object]:
    rows = features(N, D)
    return lambda: hierarchical_kmeans(rows, (M,), iterations=3, tolerance=0)


def growth() -> None:
    table = Table(title="growth, 3 iterations: each of N, M and D doubled", title_justify="left")
    for heading in ("N", "M", "D", "seconds", "relative to the first", "peak MiB beyond the features"):
        table.add_column(heading, justify="right")
    base = (50_000, 1000, 64)
    sizes = [base, (100_000, 1000, 64), (200_000, 1000, 64), (50_000, 2000, 64), (50_000, 4000, 64)]
    sizes += [(50_000, 1000, 128), (50_000, 1000, 256)]
    first = seconds(prepared(*base), repeats=3)
    for size in sizes:
        taken = first if size == base else seconds(prepared(*size), repeats=3)
        memory = peak_mebibytes(prepared, *size)
        table.add_row(*(f"{value:,}" for value in size), f"{taken:.2f}", f"{taken / first:.1f}×", f"{memory:.0f}")
    Console().print(table)


def main() -> None:
    against_faiss()
    growth()


if __name__ == "__main__":
    main()
