"""Small runs, each in a process of its own that can be killed at a given point; the jobs of test_killed.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning_fabric
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from hirl.data import Shapes
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method
from hirl.train import epoch_trees, loop
from hirl.train.pretrain import pretrain

from ..jobs import after, die, kill_before, kill_in_checkpoint, serve
from ..small_methods import METHODS, small_arguments

EPOCHS, BATCH, IMAGES = 4, 16, 100
FIRST_SCALE = 2.0**20  # overflows at once
LOADED_LATE = ("timm", "torch.utils.tensorboard")  # by a run when it needs them


def small(method: str) -> Method:
    """A method at a size for tests. A queue fills from step 6 on, over the first steps with a tree."""
    # Without batch norm behind masks, as ranks hide unequally many patches.
    changes: dict[str, Any] = {"queue_length": 128, "queue_epoch": 1, "local_crops": 2, "head_batch_norm": False}
    return METHODS[method](**small_arguments(method, size=16, **changes))


def kill_in_clustering(at: int, shot: Callable[[], None] = die) -> None:
    """Kill this process at the `at`-th clustering chunk, over all trees."""
    build_tree, due = epoch_trees.EpochTrees.build, after(at)

    def built(self: Any, *arguments: Any, **options: Any) -> None:
        start = self.observer.on_tree_start

        def on_tree_start(epoch: int) -> Any:
            progress = start(epoch)

            def chunk(*figures: int) -> None:
                if due():
                    shot()
                if progress is not None:
                    progress(*figures)

            return chunk

        self.observer.on_tree_start = on_tree_start
        build_tree(self, *arguments, **options)
        self.observer.on_tree_start = start

    epoch_trees.EpochTrees.build = built  # type: ignore[method-assign]


def arm(where: str, at: int) -> None:
    """Kill the process at the `at`-th step or clustering chunk, or in the middle of writing the `at`-th checkpoint.

    At the end: before the final tree (0), after it was built but before it was saved (1), or after it was saved (2).
    """
    if where == "step":
        kill_before(loop.Loop, "_step", at)
    elif where == "checkpoint":
        kill_in_checkpoint(at)
    elif where == "refresh":
        kill_in_clustering(at)
    elif where == "end":
        finish, build = loop.Loop.finish, epoch_trees.EpochTrees.build

        def finished(self: loop.Loop) -> None:
            if at == 0:
                die()
            finish(self)
            die()

        def built(self: epoch_trees.EpochTrees, epoch: int, *features: Any) -> None:
            build(self, epoch, *features)
            if epoch == self.epochs:
                die()

        if at == 1:
            epoch_trees.EpochTrees.build = built  # type: ignore[method-assign, assignment]
        else:
            loop.Loop.finish = finished  # type: ignore[method-assign]


def use_float16() -> None:
    """Train in float16, which Fabric does not offer on a CPU, with a scale that changes every few steps."""

    def half(*, precision: str, **options: Any) -> Fabric:  # noqa: ARG001
        scaler = torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE, growth_interval=2)
        return Fabric(plugins=[MixedPrecision("16-mixed", "cpu", scaler)], **options)

    lightning_fabric.Fabric = half  # type: ignore[assignment, misc]


def train(images: Shapes, *, method: str, folder: str, where: str, at: int, half: bool) -> None:
    if half:
        use_float16()
    if where != "never":
        arm(where, at)
    pretrain(
        images,
        small(method),
        Hierarchy(levels=(12, 4), negatives=5, start_epoch=2),
        out=folder,
        epochs=EPOCHS,
        batch_size=BATCH,
        accelerator="cpu",
        devices=1,
        checkpoint_minutes=0.001,
        knn_every=2,
    )


if __name__ == "__main__":
    for name in LOADED_LATE:
        importlib.import_module(name)
    serve(partial(train, Shapes(images=IMAGES, size=16, cache=False)))
