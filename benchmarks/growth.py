"""Growth of sampled trees with the number of rows: seconds and memory for 10⁴ … 10⁷ × 128, and a cost model.

    python -m benchmarks.growth --largest 1000000 --folder /tmp/growth

The model, for given levels and D, is seconds = a + b · sample + c · rows: fitting grows with the sample, assigning with
the rows. It is fitted to all sizes but the largest, which it then predicts.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from hirl.hierarchy.sampled import assign_all, draw_rows, sampled_tree

DIM, LEVELS, PART, CLUSTERS = 128, (1000, 100, 10), 250_000, 3000


def write_rows(folder: Path, count: int) -> list[np.ndarray]:
    """Rows around random directions, in parts on disk, as half precision."""
    parts = []
    centres = np.random.default_rng(0).normal(size=(CLUSTERS, DIM)).astype(np.float32)
    for part, start in enumerate(range(0, count, PART)):
        file, random = folder / f"{part:05}.npy", np.random.default_rng((1, part))
        rows = min(PART, count - start)
        if not file.exists():
            noise = random.normal(size=(rows, DIM)).astype(np.float32)
            np.save(file, (centres[random.integers(CLUSTERS, size=rows)] + noise).astype(np.float16))
        parts.append(np.load(file, mmap_mode="r")[:rows])
    return parts


def measure(parts: list[np.ndarray]) -> dict[str, float]:
    rows = sum(map(len, parts))
    start = time.perf_counter()
    tree = sampled_tree(parts, LEVELS)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    assign_all(tree, parts)
    assigning = time.perf_counter() - start
    sample = torch.from_numpy(draw_rows(parts, 20_000, seed=9).astype(np.float32))
    unit = torch.nn.functional.normalize(sample, dim=1)
    cosine = (unit * tree.prototypes[0][tree.assign(sample)]).sum(1).mean()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "seconds": seconds, "assigning": assigning, "cosine": float(cosine), "peak_mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="where rows are written: 2.6 GB for 10⁷")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = options.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        found = []
        for count in (10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000):
            if count <= options.largest:
                found.append(measure(write_rows(folder, count)))
                print("  ".join(f"{name} {value:,.3f}" for name, value in found[-1].items()), flush=True)
    terms = np.array([[1.0, min(one["rows"], 256 * LEVELS[0]), one["rows"]] for one in found])
    seconds = np.array([one["seconds"] for one in found])
    if len(found) > 3:
        model, *_ = np.linalg.lstsq(terms[:-1] / seconds[:-1, None], np.ones(len(found) - 1), rcond=None)
        predicted = float(terms[-1] @ model)
        print(f"model {model}: predicts {predicted:.1f} s for the largest, measured {seconds[-1]:.1f} s")


if __name__ == "__main__":
    main()
