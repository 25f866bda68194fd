"""Two steps of each ImageNet recipe at full size in bf16-mixed, on a toy tree of classes, and the memory they need.

    python -m benchmarks.full_size

Each recipe runs as `hirl pretrain toy/ --config imagenet/NAME` in a process of its own, one step of L_img alone and one
with a tree; only the batch, the epochs and the levels are those of so few images.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from hirl.run import Run
from hirl.terminal.tables import print_tables

RECIPES = ("moco_v2", "simsiam", "swav", "moco_v3", "dino", "ibot")
CLASSES = 2  # of two images each, so that all of them are one batch
SMALL = ("--batch_size", "4", "--epochs", "2", "--hierarchy.levels", "3", "2", "--hierarchy.start_epoch", "1")
OWN = {"moco_v2": ("--method.bn_splits", "1")}  # the recipe's split needs more images


def toy_tree(folder: Path) -> None:
    """Save two images of noise per class."""
    draw = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"class_{label}").mkdir(parents=True)
        for number in range(2):
            pixels = draw.integers(0, 256, (256, 300, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class_{label}" / f"{number}.png")


def step(name: str, folder: Path, precision: str) -> list[str]:
    """Train one recipe; its row of the table."""
    out = folder / name
    command = [sys.executable, "-m", "hirl.cli.main", "pretrain", str(folder / "toy"), "--config", f"imagenet/{name}"]
    command += [
        "--out",
        str(out),
        "--precision",
        precision,
        "--accelerator",
        "cpu",
        "--workers",
        "0",
        "--knn_every",
        "0",
    ]
    start = time.perf_counter()
    process = subprocess.Popen([*command, *SMALL, *OWN.get(name, ())], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - start
    if status:
        raise SystemExit(f"{name} ended with the status {status}: its messages are above")
    losses = [line for line in Run(out).metrics() if "loss_image" in line]
    first, last = losses[0], losses[-1]
    weights = sum(parameter.numel() for parameter in Run(out).encoder.parameters())
    figures = [
        f"{weights / 1e6:.1f} M",
        f"{first['loss_image']:.3f}",
        f"{last['loss_image']:.3f} + {last['loss_spd']:.3f}",
    ]
    return [name, *figures, f"{usage.ru_maxrss / 2**20:.1f} GiB", f"{taken:.0f} s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--precision", default="bf16-mixed")
    arguments = parser.parse_args()
    rows = [["recipe", "encoder", "first loss", "with a tree", "peak memory", "time"]]
    with tempfile.TemporaryDirectory() as name:
        toy_tree(Path(name) / "toy")
        for recipe in arguments.recipes:
            rows.append(step(recipe, Path(name), arguments.precision))
            print(" ".join(rows[-1]), flush=True)
    print_tables({f"two steps of 4 images, {arguments.precision}": rows})


if __name__ == "__main__":
    main()
