"""Small runs, each in a process of its own that can be killed at a given point; used by test_killed.py.

As a script it reads jobs from stdin, one line of JSON per job: method, folder, where, at and half. For each it forks,
which saves the run the time for imports and for drawing images, and prints the exit code and output of the process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from hirl import methods
from hirl.data import Shapes
from hirl.hierarchy.settings import Hierarchy
from hirl.runs import checkpoint
from hirl.train import loop, processes
from hirl.train.pretrain import pretrain

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


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str, at: int) -> None:
    """Kill the process at the `at`-th step or clustering chunk, or in the middle of writing the `at`-th checkpoint.

    At the end: before the final tree (0), after it was built but before it was saved (1), or after it was saved (2).
    """
    count = 0

    def counted() -> bool:
        nonlocal count
        count += 1
        return count > at

    if where == "step":
        step = loop.Loop._step

        def stepped(self: Any, *arguments: Any) -> Any:
            if counted():
                die()
            return step(self, *arguments)

        loop.Loop._step = stepped  # type: ignore[method-assign, assignment]
    elif where == "refresh":
        build_tree = loop.Loop._build_tree

        def built(self: Any, *arguments: Any, **options: Any) -> None:
            start = self.observer.on_tree_start

            def on_tree_start(epoch: int) -> Any:
                progress = start(epoch)

                def chunk(*figures: int) -> None:
                    if counted():
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
    elif where == "checkpoint":
        save = torch.save

        def saved(state: Any, path: Any) -> None:
            save(state, path)
            if counted():
                os.truncate(path, Path(path).stat().st_size // 2)
                die()

        checkpoint.torch.save = saved  # type: ignore[attr-defined]


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


def in_a_process(images: Shapes, job: dict[str, Any]) -> dict[str, Any]:
    """Run the job in a process of its own; return its exit code, negative for a signal, and its output."""
    captured = Path(job["folder"]).with_suffix(".txt")
    child = os.fork()
    if child == 0:
        output = os.open(captured, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = 1
        try:
            train(images, **job)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # without the cleanup of the script
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "output": captured.read_text()}


def main() -> None:
    torch.set_num_threads(1)
    for name in LOADED_LATE:
        importlib.import_module(name)
    images = Shapes(images=IMAGES, size=16, cache=False)
    for line in sys.stdin:
        print(json.dumps(in_a_process(images, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
