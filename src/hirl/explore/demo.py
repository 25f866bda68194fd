"""The demo: draws pictures, trains a baseline and HIRL on them, compares the two and writes a tree page.

It needs no data, no network and no GPU. Both arms share stage one, so they differ only by HIRL; the difference is
measured in this run, and may have either sign.
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from hirl.data.shapes import Shapes
from hirl.evals.base import Result
from hirl.evals.clustering import Clustering
from hirl.evals.evaluate import evaluate
from hirl.evals.knn import KNN
from hirl.evals.tree import TreeAgreement
from hirl.explore.collection import open_collection
from hirl.explore.page import check_page_folder
from hirl.explore.tree_page import write_tree_page
from hirl.files import atomic_write
from hirl.run import Run
from hirl.runs.metrics import SECONDS_EPOCH
from hirl.terminal.figures import format_figure
from hirl.terminal.progress import progress_bars
from hirl.terminal.tables import Cells, print_tables
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe

RECIPE = "small/swav"  # the small recipe that learns most within minutes
DRAWN = 64  # pixels, for a good-looking page; the recipe trains at 32
KINDS = 48
VAL_SHARE = 4  # training pictures per val picture
TASKS = (KNN(ks=(20,)), Clustering(), TreeAgreement(sample=1000))
SHOWN = {"knn": ("KNN", ""), "clustering": ("clustering, AMI", "AMI, "), "tree": ("tree, AMI", "AMI, ")}


def demo(out: Path, *, images: int = 6000, epochs: int | None = None, seed: int = 0) -> Path:
    """Run the demo in the folder `out` and return the folder of the tree page. The same call continues it."""
    start = time.monotonic()
    options = recipe(RECIPE)
    if images < options["batch_size"]:
        raise ValueError(f"images is {images}, but must be at least {options['batch_size']}, the size of a batch")
    if epochs is not None and epochs < 2:
        raise ValueError(f"epochs is {epochs}, but must be at least 2: the first has no tree yet")
    pictures, page = out / "pictures", out / "tree"
    if (there := sum(1 for _ in (pictures / "train").rglob("*.png"))) > images:
        raise ValueError(f"images is {images:,}, but must be the {there:,} of {str(pictures)!r}: name another --out")
    out.mkdir(parents=True, exist_ok=True)
    check_page_folder(page)
    print(f"1/5  Drawing {images:,} pictures of 48 kinds, 12 families and 4 kingdoms. Training uses no labels.")
    draw_pictures(pictures, images)

    hierarchy, method = options["hierarchy"], options["method"]
    if epochs is not None:
        hierarchy = hierarchy.for_epochs(options["epochs"], epochs)
        options["epochs"] = epochs
    first = hierarchy.resolve(images, options["epochs"]).start_epoch
    shared: dict[str, Any] = options | {"data": str(pictures), "seed": seed, "knn_every": 0, "accelerator": "cpu"}

    print(f"\n2/5  Training the baseline ({type(method).__name__} alone) for {options['epochs']} epochs.")
    alone = {"method": method, "hierarchy": None, "out": out / "shapes-base", "fork_at": (first,)}
    base = pretrain(**shared | alone)
    print(f"\n3/5  Training HIRL: the same network until epoch {first}, then with a tree, rebuilt every epoch.")
    forked = {
        "method": method.unbuilt_copy(),
        "hierarchy": hierarchy,
        "out": out / "shapes-hirl",
        "stage_one": base.folder,
    }
    hirl = pretrain(**shared | forked)

    print("\n4/5  Comparing both with the labels, on pictures that were not trained on.")
    size = {"image_size": options["image_size"]}
    quiet: dict[str, Any] = {"data": str(pictures), "quiet": True, "seed": seed, "device": "cpu"}
    results = {name: evaluate(run, *TASKS, **quiet, reuse=True) for name, run in (("base", base), ("HIRL", hirl))}
    results["pixels"] = evaluate(Pixels(), *TASKS, **quiet, **size)
    print_tables({"per label level, in %": table(results, {"base": base, "HIRL": hirl})})

    print("\n5/5  Writing the tree of the HIRL run as a page.")
    collection = open_collection(hirl, quiet=True, device="cpu")
    with progress_bars() as progress:
        write_tree_page(collection, page, progress=progress)
    print(f"\nDone in {(time.monotonic() - start) / 60:.1f} minutes. {how_to_open(page, os.environ)}")
    return page


class Pixels(nn.Module):
    """No encoder: features are 16 × 16 pixels. With more, the principal components for the tree would take minutes."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.adaptive_avg_pool2d(images, 16).flatten(1)


def draw_pictures(folder: Path, images: int) -> None:
    """Save Shapes as train/KINGDOM/FAMILY/KIND/NUMBER.png and val/…; existing pictures are kept."""
    with progress_bars() as progress:
        for split, count in (("train", images), ("val", max(2 * KINDS, images // VAL_SHARE))):
            pictures = Shapes(images=count, size=DRAWN, split=split, cache=False)
            for index in range(count):
                names = [of[label] for of, label in zip(pictures.label_names, pictures.labels[index], strict=True)]
                file = folder.joinpath(split, *reversed(names), f"{index:05d}.png")
                if not file.is_file():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with atomic_write(file) as aside:
                        Image.fromarray(pictures.read(index).permute(1, 2, 0).numpy()).save(aside, "PNG")
                if index % 200 == 0 or index + 1 == count:
                    progress(f"{split} pictures", index + 1, count)


def table(results: dict[str, dict[str, Result]], runs: dict[str, Run]) -> Cells:
    """A row per task and label level, and one for the time; base, HIRL and pixels side by side."""
    rows = [["", *results]]
    for task, (title, prefix) in SHOWN.items():
        for figure in (name for name in results["base"][task].headline if name.startswith(prefix)):
            values = [format_figure(of[task].headline[figure]) for of in results.values()]
            rows.append([f"{title}, {figure.removeprefix(prefix)}", *values])
    seconds = {name: sum(line.get(SECONDS_EPOCH.name, 0.0) for line in run.metrics()) for name, run in runs.items()}
    times = (f"{seconds[name]:.0f}" if name in seconds else "" for name in results)
    return [*rows, ["seconds of training, stage one included", *times]]


def how_to_open(page: Path, environment: Any) -> str:
    """How to open the page: over ssh or without a display, it must be copied to a machine with a browser."""
    index = (page / "index.html").resolve()
    if environment.get("SSH_CONNECTION"):
        copy = f"scp -r {socket.gethostname()}:{shlex.quote(str(index.parent))} ."
        return f"The tree page is {index}. Copy its folder to your own machine and open it there: {copy}"
    return f"Open the tree page in a browser: {index.as_uri()}"
