"""Growth of sampled trees with the number of rows: CPU seconds, memory and quality for 10⁴ … 10⁷ × 128; a cost model.

    python -m benchmarks.growth --largest 1000000 --folder /tmp/growth

CPU seconds of one thread are counted, which other work on the machine hardly changes, and memory without the pages of
mapped files, which the system takes back when it needs them. The model, for given levels and D, is
seconds = a + b · sample for fitting, and a + b · sample + c · rows for the rest: the end of fitting, and assigning.
Each of the two is fitted by itself, by relative least squares: in their sum, assigning is too small a part of small
sizes to be told from the variation of fitting. Sizes above --model_up_to take no part and are predicted. Each size runs
in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from hirl import hierarchical_kmeans
from hirl.hierarchy.sampled import ROWS_PER_PROTOTYPE, draw_rows, sampled_tree
from hirl.hierarchy.tree import PrototypeTree

DIM, LEVELS, PART, CLUSTERS = 128, (1000, 100, 10), 250_000, 3000
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
SAMPLE = ROWS_PER_PROTOTYPE * LEVELS[0]
BEYOND = (10**8, 10**9)


def write_rows(folder: Path, count: int) -> list[np.ndarray]:
    """Rows around random directions, in parts on disk, as half precision."""
    parts = []
    centres = np.random.default_rng(0).normal(size=(CLUSTERS, DIM)).astype(np.float32)
    for part, start in enumerate(range(0, count, PART)):
        file, random = folder / f"{part:05}.npy", np.random.default_rng((1, part))
        if not file.exists():
            noise = random.standard_normal((PART, DIM), dtype=np.float32)
            np.save(file, (centres[random.integers(CLUSTERS, size=PART)] + noise).astype(np.float16))
        parts.append(np.load(file, mmap_mode="r")[: count - start])
    return parts


@contextmanager
def own_memory() -> Iterator[list[int]]:
    """The largest number of bytes, in a list, that this process holds beyond mapped files and what it held before."""
    ended, peak = threading.Event(), [0]
    before = _own_memory()

    def look() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], _own_memory() - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    yield peak
    ended.set()
    watcher.join()


def _own_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def cosine(tree: PrototypeTree, parts: list[np.ndarray]) -> float:
    """The mean over 20,000 rows of the cosine with the prototype of their leaf."""
    rows = torch.from_numpy(draw_rows(parts, 20_000, seed=9).astype(np.float32))
    return float((F.normalize(rows, dim=1) * tree.prototypes[0][tree.assign(rows)]).sum(1).mean())


def measure(folder: Path, count: int, all_rows: bool = False) -> dict[str, float]:
    """Build a tree on a sample, or on all rows in memory."""
    torch.set_num_threads(1)
    parts = write_rows(folder, count)
    sampled_tree([parts[0][:5000]], (20, 4))  # warm up
    clock = [0.0]

    def progress(*_: int) -> None:
        clock[0] = time.process_time()

    with own_memory() as peak:
        start = time.process_time()
        if all_rows:
            tree = hierarchical_kmeans(np.concatenate(parts), LEVELS, progress=progress)
        else:
            tree = sampled_tree(parts, LEVELS, progress=progress)
        end = time.process_time()
    spent = {"fitting": clock[0] - start, "assigning": end - clock[0]}  # from the last step of K-means on
    return {"rows": count, **spent, "mebibytes": peak[0] / 2**20, "cosine": cosine(tree, parts)}


def in_own_process(*arguments: object) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(measure, arguments)
    print("  ".join(f"{name} {value:,.4g}" for name, value in found.items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10_000_000)
    parser.add_argument("--model_up_to", type=int, default=1_000_000, help="the largest size the model is fitted to")
    parser.add_argument(
        "--all", type=int, default=1_000_000, help="rows of which all are fitted, to compare; 0 for none"
    )
    parser.add_argument("--folder", type=Path, help="where rows are written: 2.6 GB for 10⁷; by default removed after")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = options.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        found = [in_own_process(folder, count) for count in SIZES if count <= options.largest]
        if len(found) > 4:
            show_model(found, options.model_up_to)
        if options.all > SAMPLE:
            print("all rows:")
            in_own_process(folder, options.all, True)


def show_model(found: list[dict[str, float]], largest: int) -> None:
    """Fit the model to sizes up to `largest`, and compare it with what was measured at all sizes."""
    known = [one for one in found if one["rows"] <= largest]

    def terms(rows: float) -> np.ndarray:
        return np.array([1.0, min(rows, SAMPLE), rows])

    def fitted(stage: str, count: int) -> np.ndarray:
        shares = np.stack([terms(one["rows"])[:count] / one[stage] for one in known])
        return np.linalg.lstsq(shares, np.ones(len(known)), rcond=None)[0]

    model = np.pad(fitted("fitting", 2), (0, 1)) + fitted("assigning", 3)
    print(f"sizes up to {largest:,}: CPU seconds = {model[0]:.3g} + {model[1]:.3g} · sample + {model[2]:.3g} · rows")
    for one in found:
        ratio = terms(one["rows"]) @ model / (one["fitting"] + one["assigning"])
        print(f"{one['rows']:>14,} rows: predicted / measured {ratio:.2f}")
    for rows in BEYOND:
        print(f"{rows:>14,} rows: {terms(rows) @ model / 3600:.2f} CPU hours")


if __name__ == "__main__":
    main()
