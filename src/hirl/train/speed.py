"""Measures how fast a recipe trains on this machine and where time goes, over some steps of stage two and a tree."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric

from hirl.data.sources.image_set import ImageSet
from hirl.hierarchy.settings import Hierarchy
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method
from hirl.processes import Precision, launch
from hirl.runs.images_file import OpenedImages
from hirl.signals import Stopped
from hirl.train.finite_losses import NotFinite
from hirl.train.keeping import Store
from hirl.train.loop import Loop
from hirl.train.memory import Need, estimate_need, memory_advice
from hirl.train.observer import Observer
from hirl.train.resolve import hierarchy_defaults
from hirl.train.settings import Settings
from hirl.train.setup import build
from hirl.train.training_images import TrainingImages

DATA, FORWARD, BACKWARD, SPD, UPDATE, REFRESH = "data", "forward", "backward", "HIRL's loss", "update", "refresh"
REST = "rest"
STAGES = (DATA, FORWARD, BACKWARD, SPD, UPDATE, REFRESH, REST)
PLANNED_EPOCHS = 1000  # epochs of the plan: more than are measured
WARM_UP = 0.25  # of the seconds to measure


@dataclass(frozen=True, kw_only=True)
class TimedRecipe:
    """The settings of a recipe that affect its speed, all resolved."""

    method: Method
    hierarchy: Hierarchy | None
    epochs: int
    batch_size: int
    image_size: int
    precision: Precision = "32-true"
    workers: int | None = None


@dataclass(frozen=True)
class Speed:
    """An epoch of stage two. `need` is the memory of the run, if it can be estimated."""

    seconds: dict[str, float]  # by stage
    images: int
    workers: int
    need: Need | None

    @property
    def images_per_second(self) -> float:
        return self.images / sum(self.seconds.values())

    def share(self, stage: str) -> float:
        return self.seconds[stage] / sum(self.seconds.values())


class Stopwatch(Observer):
    """Seconds per stage of a loop. A timed call within another one counts for the inner stage only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.built: dict[str, float] = defaultdict(float)  # seconds of trees, by metric
        self.steps, self.stepping = 0, 0.0  # their number and total seconds
        self.limit = float("inf")  # seconds of steps
        self._inner, self._last = 0.0, 0.0

    def attach(self, loop: Loop) -> None:
        wait = torch.accelerator.synchronize if loop.fabric.device.type != "cpu" else lambda: None
        self._wrap(loop.joint, "forward", SPD, wait)
        self._wrap(loop.method, "forward", FORWARD, wait)
        self._wrap(loop.fabric, "backward", BACKWARD, wait)
        self._wrap(loop.optimiser, "step", UPDATE, wait)
        for step in ("before_update", "clip_gradients", "after_step"):
            self._wrap(loop.method, step, UPDATE, wait)

    def _wrap(self, owner: Any, name: str, stage: str, wait: Callable[[], None]) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            wait()  # a GPU may still be busy with earlier work
            outer, self._inner = self._inner, 0.0
            start = time.perf_counter()
            result = work(*arguments, **named)
            wait()
            taken = time.perf_counter() - start
            self.seconds[stage] += taken - self._inner
            self._inner = outer + taken
            return result

        setattr(owner, name, timed)

    def start(self, *, limit: float = float("inf")) -> None:
        """Count from now on, until the steps have taken `limit` seconds."""
        self.seconds.clear()
        self.built.clear()
        self.steps, self.stepping, self.limit = 0, 0.0, limit

    def fit_epoch(self, loop: Loop) -> None:
        self._last = time.perf_counter()
        with suppress(Stopped):
            loop.fit_epoch()

    def is_over(self) -> bool:
        return self.stepping >= self.limit

    def on_step(self, *_: object) -> None:
        now = time.perf_counter()
        self.steps, self.stepping, self._last = self.steps + 1, self.stepping + now - self._last, now

    def on_tree_built(
        self, _epoch: int, seconds: dict[str, float], _tree: PrototypeTree, _agreement: dict[str, float]
    ) -> None:
        for metric, taken in seconds.items():
            self.built[metric] += taken
        self._last = time.perf_counter()


def make_loop(recipe: TimedRecipe, images: ImageSet, fabric: Fabric) -> tuple[Loop, Stopwatch]:
    """A loop that trains a recipe on images and saves nothing, and a stopwatch to watch it."""
    method, hierarchy = recipe.method.unbuilt_copy(), None
    if recipe.hierarchy is not None:
        hierarchy = recipe.hierarchy.resolve(len(images), PLANNED_EPOCHS, hierarchy_defaults(method))
    settings = Settings(
        data=images.name,
        method=method,
        hierarchy=hierarchy,
        epochs=PLANNED_EPOCHS,
        batch_size=recipe.batch_size,
        image_size=recipe.image_size,
        seed=0,
        split=None,
        channels=images.channels,
        mean=None,
        std=None,
        precision=recipe.precision,
        accumulate=1,
        encoder=None,
        cached_views=2,
        neighbours=0.0,
        unfreeze=0,
    )
    opened = OpenedImages(images, images, hashes=False)
    components = build(fabric, settings, TrainingImages(images, opened, recipe.workers))
    watch = Stopwatch()
    loop = Loop(fabric, components, watch, Store(), should_stop=watch.is_over)
    return loop, watch


def measure_speed(recipe: TimedRecipe, images: ImageSet, *, seconds: float, accelerator: str = "auto") -> Speed:
    """Train a recipe for some seconds of steps, and report an epoch of stage two at that speed.

    The first tree and the steps of the first quarter of the time are warm-up and do not count.
    """
    fabric = launch(accelerator, precision=recipe.precision)
    hierarchy = replace(recipe.hierarchy or Hierarchy(), start_epoch=0)
    loop, watch = make_loop(replace(recipe, hierarchy=hierarchy), images, fabric)
    need = estimate_need(
        loop.method,
        loop.plan,
        images=loop.plan.batch_size,
        N=len(images),
        workers=loop.loader.workers,
        device=fabric.device.type,
        mixed="mixed" in recipe.precision,
    )
    watch.attach(loop)  # after the estimate, which copies the method
    with memory_advice():
        _train(loop, watch, WARM_UP * seconds)
        waited = loop.loader.waited
        trees = _train(loop, watch, (1 - WARM_UP) * seconds)
    spent = {**watch.seconds, DATA: loop.loader.waited - waited}
    spent[REST] = watch.stepping - sum(spent.values())
    epoch = {stage: spent.get(stage, 0.0) / watch.steps * loop.plan.steps_per_epoch for stage in STAGES}
    epoch[REFRESH] = sum(watch.built.values()) / trees
    return Speed(epoch, loop.plan.steps_per_epoch * loop.plan.batch_size, loop.loader.workers, need)


def _train(loop: Loop, watch: Stopwatch, seconds: float) -> int:
    """Train for so many seconds of steps, from the next epoch on; return the number of trees built."""
    steps, epochs = loop.plan.steps_per_epoch, 0
    loop.step = -(-loop.step // steps) * steps
    watch.start(limit=seconds)
    while not watch.is_over():
        try:
            watch.fit_epoch(loop)
        except NotFinite as error:
            name = type(loop.method).__name__
            raise ValueError(f"{name}'s loss is {error.loss} at step {error.step}: lower its learning rate") from error
        epochs += 1
    return epochs
