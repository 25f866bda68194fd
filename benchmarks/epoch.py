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
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Table

from benchmarks.measure import peak_mebibytes
from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.sources import ImageSet, open_images
from hirl.data.sources.images_in_memory import in_memory
from hirl.data.sources.subset import Subset
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Plan
from hirl.recipes import recipe_names
from hirl.train.loop import Loop
from hirl.train.observer import SilentObserver
from hirl.train.recipe import recipe
from hirl.train.setup import build_paths

PAPER = {"MoCoV2": 1.28, "SimSiam": 1.74, "SwAV": 1.36, "MoCoV3": 1.64, "DINO": 1.24, "IBOT": 1.23}
STAGES = ("data", "forward", "SPD", "backward", "update", "features", "kmeans", "rest")
MEMORY_IMAGES = 2560
WARM_UP = 2  # epochs: the first has no tree, the second builds it from scratch


class Stopwatch(SilentObserver):
    """Measures seconds per stage. A wrapped call within another one counts for the inner stage only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = 0.0

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            start = perf_counter()
            result = work(*arguments, **named)
            taken = perf_counter() - start
            self.seconds[stage] += taken - self._inner
            self._inner = outer + taken
            return result

        setattr(owner, name, timed)

    def on_tree_built(self, _epoch: int, seconds: dict[str, float], *_: object) -> None:  # type: ignore[override]
        for stage, taken in seconds.items():
            self.seconds[stage] += taken


def make_arm(name: str, images: ImageSet, hierarchy: Hierarchy | None, epochs: int) -> tuple[Loop, Stopwatch]:
    """Build one arm of a recipe, ready to be trained epoch by epoch."""
    options = recipe(name)
    method, size = options["method"], options["image_size"]
    loader = Loader(images, method.views(size), batch_size=options["batch_size"])
    plan = Plan(epochs, len(loader), options["batch_size"], size)
    torch.manual_seed(0)
    method.build(plan)
    resolved = None if hierarchy is None else hierarchy.resolve(len(images), epochs)
    paths = build_paths(resolved, method.dim, seed=0)
    watch = Stopwatch()
    loop = Loop(
        fabric=Fabric(accelerator="cpu", devices=1),
        method=method,
        paths=paths,
        hierarchy=resolved,
        plan=plan,
        loader=loader,
        evaluation_loader=EvaluationLoader(images, size=size),
        N=len(images),
        seed=0,
        observer=watch,
        save_state=lambda _: None,
        save_tree=lambda _: None,
    )
    watch.wrap(loop.joint, "forward", "SPD")
    watch.wrap(method, "forward", "forward")
    watch.wrap(loop.fabric, "backward", "backward")
    watch.wrap(loop.optimiser, "step", "update")
    for step in ("before_update", "clip_gradients", "after_step"):
        watch.wrap(method, step, "update")
    return loop, watch


def two_epochs(name: str, data: str, *, hirl: bool) -> Callable[[], None]:
    images = in_memory(open_images(data))
    some = Subset(images, torch.arange(0, len(images), max(1, len(images) // MEMORY_IMAGES))[:MEMORY_IMAGES])
    hierarchy = replace(recipe(name)["hierarchy"], start_epoch=1, levels=None) if hirl else None

    def work() -> None:
        loop, _ = make_arm(name, some, hierarchy, 2)
        loop.fit_epoch()
        loop.fit_epoch()

    return work


def baseline_memory(name: str, data: str) -> Callable[[], None]:
    return two_epochs(name, data, hirl=False)


def hirl_memory(name: str, data: str) -> Callable[[], None]:
    return two_epochs(name, data, hirl=True)


def epoch(loop: Loop, watch: Stopwatch) -> dict[str, float]:
    watch.seconds.clear()
    data_seconds, start = loop.loader.waited, perf_counter()
    loop.fit_epoch()
    total = perf_counter() - start
    spent = {**watch.seconds, "data": loop.loader.waited - data_seconds}
    return {"total": total, "rest": total - sum(spent.values()), **spent}


def compare(name: str, data: str, repeats: int, console: Console) -> list[str]:
    images = in_memory(open_images(data))
    options = recipe(name)
    hierarchy = replace(options["hierarchy"], start_epoch=1)
    arms = {
        "baseline": make_arm(name, images, None, repeats + WARM_UP),
        "HIRL, bank": make_arm(name, images, replace(hierarchy, features="bank"), repeats + WARM_UP),
        "HIRL, full pass": make_arm(name, images, replace(hierarchy, features="pass"), repeats + WARM_UP),
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
