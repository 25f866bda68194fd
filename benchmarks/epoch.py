"""The time HIRL adds to an epoch: stage two, with the bank and with the full pass, against the baseline; per stage.

    python -m benchmarks.epoch                          # the small recipes on the built-in pictures
    python -m benchmarks.epoch small/dino --data FOLDER # one of them on images of your own

The three arms of a recipe take turns in one process, a few steps at a time, so that other work on the machine and its
changing speed affect all alike. The first epochs do not count: they warm up and build the first tree. An epoch's time
is that of its steps, by the median of the turns, and that of its tree.
Peak memory is what two epochs of 2,560 images, the second with a tree, add to a process with the libraries loaded.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

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
TURN = 2.0  # seconds


def make_arm(options: Mapping[str, Any], images: ImageSet, hierarchy: Hierarchy | None) -> tuple[Loop, Stopwatch]:
    """Build one arm of a recipe, given by its options, ready to be trained epoch by epoch."""
    sizes = {size: options[size] for size in ("epochs", "batch_size", "image_size")}
    timed = TimedRecipe(method=options["method"], hierarchy=hierarchy, **sizes)
    loop, watch = make_loop(timed, images, Fabric(accelerator="cpu", devices=1))
    watch.attach(loop)
    return loop, watch


def two_epochs(name: str, data: str, *, hirl: bool) -> Callable[[], None]:
    images = in_memory(open_images(data))
    some = Subset(images, torch.arange(0, len(images), max(1, len(images) // MEMORY_IMAGES))[:MEMORY_IMAGES])
    options = recipe(name)
    hierarchy = replace(options["hierarchy"], start_epoch=1, levels=None) if hirl else None

    def work() -> None:
        loop, _ = make_arm(options, some, hierarchy)
        loop.fit_epoch()
        loop.fit_epoch()

    return work


def baseline_memory(name: str, data: str) -> Callable[[], None]:
    return two_epochs(name, data, hirl=False)


def hirl_memory(name: str, data: str) -> Callable[[], None]:
    return two_epochs(name, data, hirl=True)


def turn(loop: Loop, watch: Stopwatch) -> tuple[dict[str, float], dict[str, float]]:
    """Train for `TURN` seconds or to the end of the epoch: seconds by stage, of a step and of a tree if one was due."""
    watch.start(limit=TURN)
    waited = loop.loader.waited
    watch.fit_epoch(loop)
    spent = {**watch.seconds, DATA: loop.loader.waited - waited}
    spent[REST] = watch.stepping - sum(spent.values())
    built = {metric.removeprefix("seconds_"): taken for metric, taken in watch.built.items()}
    return {stage: taken / watch.steps for stage, taken in spent.items()}, built


def epochs_in_turns(arms: dict[str, tuple[Loop, Stopwatch]], repeats: int) -> dict[str, dict[str, float]]:
    """By arm, the seconds of an epoch by stage and in all."""
    steps: dict[str, list[dict[str, float]]] = defaultdict(list)
    trees: dict[str, list[dict[str, float]]] = defaultdict(list)
    waiting = dict(arms)
    while waiting:
        for arm, (loop, watch) in list(waiting.items()):
            epoch = loop.step // loop.plan.steps_per_epoch
            step, tree = turn(loop, watch)
            if epoch >= WARM_UP:
                steps[arm].append(step)
                trees[arm] += [tree] if tree else []
            if loop.step == (WARM_UP + repeats) * loop.plan.steps_per_epoch:
                del waiting[arm]
    epochs = {}
    for arm, (loop, _) in arms.items():
        # the stages of the turn in the middle: medians of each would not add up to that of their sum
        middle = sorted(steps[arm], key=lambda step: sum(step.values()))[len(steps[arm]) // 2]
        spent = {stage: taken * loop.plan.steps_per_epoch for stage, taken in middle.items()}
        spent |= {stage: mean(tree[stage] for tree in trees[arm]) for stage in (trees[arm][0] if trees[arm] else ())}
        epochs[arm] = {"total": sum(spent.values()), **spent}
    return epochs


def compare(name: str, data: str, repeats: int, console: Console) -> list[str]:
    images = in_memory(open_images(data))
    options = recipe(name)
    hierarchy = replace(options["hierarchy"], start_epoch=1)
    arms = {
        "baseline": make_arm(options, images, None),
        "HIRL, bank": make_arm(options, images, replace(hierarchy, features="bank")),
        "HIRL, full pass": make_arm(options, images, replace(hierarchy, features="pass")),
    }
    taken = epochs_in_turns(arms, repeats)
    method = type(options["method"]).__name__
    title = f"{method}, {len(images):,} images, levels {hierarchy.resolve(len(images), 1).levels}: seconds per epoch"
    table = Table("arm", "epoch", *STAGES, title=title, title_justify="left")
    for arm, spent in taken.items():
        table.add_row(arm, *(f"{spent.get(stage, 0.0):.2f}" for stage in ("total", *STAGES)))
    console.print(table)
    base = taken["baseline"]["total"]
    ratios = [f"{taken[arm]['total'] / base:.3f}×" for arm in ("HIRL, bank", "HIRL, full pass")]
    rates = [f"{len(images) / taken[arm]['total']:,.0f}" for arm in ("baseline", "HIRL, bank")]
    memory = [f"{peak_mebibytes(work, name, data):,.0f}" for work in (baseline_memory, hirl_memory)]
    return [method, *ratios, f"{PAPER[method]}×", *rates, *memory]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = [name for name in recipe_names() if name.startswith("small/")]
    parser.add_argument("recipes", nargs="*", default=small, metavar="recipe", help=f"of {', '.join(small)}")
    parser.add_argument("--data", default="shapes", help="images to train on; by default the built-in pictures")
    parser.add_argument("--repeats", type=int, default=2, help="number of epochs per arm that count")
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
