"""Small runs, each in a process of its own that can be killed at a given point; the jobs of test_killed.py."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from hirl import methods
from hirl.data import Shapes
from hirl.hierarchy.settings import Hierarchy
from hirl.train import loop, processes
from hirl.train.pretrain import pretrain

from ..jobs import die, kill_before, kill_in_checkpoint, more_than, serve

EPOCHS, BATCH, IMAGES = 4, 16, 100
LOADED_LATE = ("lightly.models.modules.heads", "timm", "torch.utils.tensorboard")  # by a run when it needs them
RESNET = {"backbone": "resnet10t", "backbone_args": {"channels": [8, 8, 16, 16]}}
VIT = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_args": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2},
}
HEAD = {"dim": 16, "hidden": 32, "prototypes": 64, "local_crops": 2, "warmup_epochs": 1}
METHODS: dict[str, dict[str, Any]] = {
    "MoCoV2": {**RESNET, "dim": 16, "queue_length": 64, "bn_splits": 2, "momentum": 0.9},
    "SimSiam": {**RESNET, "dim": 16, "predictor_hidden": 8, "warmup_epochs": 1},
    # The queue fills from step 6 on, over the first steps with a tree, and is used from step 14 on.
    "SwAV": {**RESNET, **HEAD, "queue_length": 128, "queue_epoch": 1, "frozen_epochs": 0.5, "lr": 30.0},
    "MoCoV3": {**VIT, "dim": 16, "hidden": 32, "momentum": 0.9, "warmup_epochs": 1, "lr": 0.01},
    "DINO": {**VIT, **HEAD, "teacher_momentum": 0.9},
    "IBOT": {**VIT, **HEAD, "teacher_momentum": 0.9, "frozen_epochs": 1, "separate_patch_head": True},
}


def arm(where: str, at: int) -> None:
    """Kill the process at the `at`-th step or clustering chunk, or in the middle of writing the `at`-th checkpoint.

    At the end: before the final tree (0), after it was built but before it was saved (1), or after it was saved (2).
    """
    if where == "step":
        kill_before(loop.Loop, "_step", at)
    elif where == "checkpoint":
        kill_in_checkpoint(at)
    elif where == "refresh":
        build_tree, due = loop.Loop._build_tree, more_than(at)

        def built(self: Any, *arguments: Any, **options: Any) -> None:
            start = self.observer.on_tree_start

            def on_tree_start(epoch: int) -> Any:
                progress = start(epoch)

                def chunk(*figures: int) -> None:
                    if due():
                        die()
                    progress(*figures)

                return chunk

            self.observer.on_tree_start = on_tree_start
            build_tree(self, *arguments, **options)
            self.observer.on_tree_start = start

        loop.Loop._build_tree = built  # type: ignore[method-assign]
    elif where == "end":
        point = ("finish", "_build_tree", "finish")[at]
        original = getattr(loop.Loop, point)

        def ended(self: Any, *arguments: Any) -> None:
            last = self.step == self.plan.steps
            if last and at == 0:
                die()
            original(self, *arguments)
            if last:
                die()

        setattr(loop.Loop, point, ended)


def use_float16() -> None:
    """Train in float16, which Fabric does not offer on a CPU, with a scale that changes every few steps."""

    def half(*, precision: str, **options: Any) -> Fabric:  # noqa: ARG001
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9, growth_interval=2)
        return Fabric(plugins=[MixedPrecision("16-mixed", "cpu", scaler)], **options)

    processes.Fabric = half  # type: ignore[assignment, attr-defined]


def train(images: Shapes, *, method: str, folder: str, where: str, at: int, half: bool) -> None:
    if half:
        use_float16()
    if where != "never":
        arm(where, at)
    # SwAV looks up an image's leaf at every step.
    assign: Any = "step" if method == "SwAV" else "stored"
    pretrain(
        images,
        getattr(methods, method)(**METHODS[method]),
        Hierarchy(levels=(12, 4), negatives=5, start_epoch=2, assign=assign),
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
