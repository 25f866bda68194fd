"""The time HIRL adds to an epoch: stage two, with the bank and with the full pass, against the baseline; per stage.

    python -m benchmarks.epoch                          # the small recipes on the built-in pictures
    python -m benchmarks.epoch small/dino --data FOLDER # one of them on images of your own

The three arms of a recipe take turns, epoch by epoch in one process, so that other work on the machine affects all
alike; the fastest epoch of each counts. The first epochs do not count: they warm up and build the first tree.
Peak memory is what two epochs of 2,560 images, the second with a tree, add to a process with the libraries loaded.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Table

from benchmarks.measure import peak_mebibytes
from hirl.data.sources import ImageSet, open_images
from hirl.data.sources.image_set import Subset
from hirl.data.sources.images_in_memory import in_memory
from hirl.hierarchy.settings import Hierarchy
from hirl.recipes import recipe_names
from hirl.train.loop import Loop
from hirl.train.recipe import recipe
from hirl.train.speed import BACKWARD, DATA, FORWARD, REST, SPD, UPDATE, Stopwatch, TimedRecipe, make_loop

PAPER = {"MoCoV2": 1.28, "SimSiam": 1.74, "SwAV": 1.36, "MoCoV3": 1.64, "DINO": 1.24, "IBOT": 1.23}
STAGES = (DATA, FORWARD, SPD, BACKWARD, UPDATE, "features", "kmeans", "agreement", REST)
MEMORY_IMAGES = 2560
WARM_UP = 2  # epochs: the first has no tree, the second builds it from scratch


def make_arm(name: str, images: ImageSet, hierarchy: Hierarchy | None) -> tuple[Loop, Stopwatch]:
    """Build one arm of a recipe, ready to be trained epoch by epoch."""
    options = recipe(name)
    sizes = {size: options[size] for size in ("epochs", "batch_size", "image_size")}
    timed = TimedRecipe(method=options["method"], hierarchy=hierarchy, **sizes)
    loop, watch = make_loop(timed, images, Fabric(accelerator="cpu", devices=1))
    watch.watch(loop)
    return loop, watch


def two_epochs(name: str, data: str, *, hirl: bool) -> Callable[[], None]:
    images = in_memory(open_images(data))
    some = Subset(images, torch.arange(0, len(images), max(1, len(images) // MEMORY_IMAGES))[:MEMORY_IMAGES])
    hierarchy = replace(recipe(name)["hierarchy"], start_epoch=1, levels=None) if hirl else None

    def work() -> None:
        loop, _ = make_arm(name, some, hierarchy)
        loop.fit_epoch()
        loop.fit_epoch()

    return work


def baseline_memory(name: str, data: str) -> Callable[[], None]:
    return two_epochs(name, data, hirl=False)


def hirl_memory(name: str, data: str) -> Callable[[], None]:
    return two_epochs(name, data, hirl=True)


def epoch(loop: Loop, watch: Stopwatch) -> dict[str, float]:
    watch.start()
    data_seconds, start = loop.loader.waited, perf_counter()
    watch.fit_epoch(loop)
    total = perf_counter() - start
    built = {metric.removeprefix("seconds_"): taken for metric, taken in watch.built.items()}
    spent = {**watch.seconds, **built, DATA: loop.loader.waited - data_seconds}
    return {"total": total, REST: total - sum(spent.values()), **spent}


def compare(name: str, data: str, repeats: int, console: Console) -> list[str]:
    images = in_memory(open_images(data))
    options = recipe(name)
    hierarchy = replace(options["hierarchy"], start_epoch=1)
    arms = {
        "baseline": make_arm(name, images, None),
        "HIRL, bank": make_arm(name, images, replace(hierarchy, features="bank")),
        "HIRL, full pass": make_arm(name, images, replace(hierarchy, features="pass")),
    }
    taken: dict[str, list[dict[str, float]]] = defaultdict(list)
    for count in range(repeats + WARM_UP):
        for arm, (loop, watch) in arms.items():
            spent = epoch(loop, watch)
            if count >= WARM_UP:
                taken[arm].append(spent)
    best = {arm: min(epochs, key=lambda spent: spent["total"]) for arm, epochs in taken.items()}
    method = type(options["method"]).__name__
    title = f"{method}, {len(images):,} images, levels {hierarchy.resolve(len(images), 1).levels}: seconds per epoch"
    table = Table("arm", "epoch", *STAGES, title=title, title_justify="left")
    for arm, spent in best.items():
        table.add_row(arm, *(f"{spent.get(stage, 0.0):.2f}" for stage in ("total", *STAGES)))
    console.print(table)
    base = best["baseline"]["total"]
    ratios = [f"{best[arm]['total'] / base:.3f}×" for arm in ("HIRL, bank", "HIRL, full pass")]
    rates = [f"{len(images) / best[arm]['total']:,.0f}" for arm in ("baseline", "HIRL, bank")]
    memory = [f"{peak_mebibytes(work, name, data):,.0f}" for work in (baseline_memory, hirl_memory)]
    return [method, *ratios, f"{PAPER[method]}×", *rates, *memory]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = [name for name in recipe_names() if name.startswith("small/")]
    parser.add_argument("recipes", nargs="*", default=small, metavar="recipe", help=f"of {', '.join(small)}")
    parser.add_argument("--data", default="shapes", help="images to train on; by default the built-in pictures")
    parser.add_argument("--repeats", type=int, default=5, help="number of epochs per arm that count")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    console = Console(width=120)
    summary = Table("method", "bank / baseline", "full pass / baseline", "paper")
    for heading in ("baseline images/s", "HIRL images/s", "baseline peak MiB", "HIRL peak MiB"):
        summary.add_column(heading)
    for name in arguments.recipes:
        summary.add_row(*compare(name, arguments.data, arguments.repeats, console))
    console.print(summary)


if __name__ == "__main__":
    main()
