"""A small run in a process of its own, which may be told where to be killed; used by test_killed.py."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from hirl.data import Shapes
from hirl.methods import DINO, Method, MoCoV2
from hirl.train import checkpoint, loop
from hirl.train.hierarchy import Hierarchy
from hirl.train.pretrain import pretrain

EPOCHS, BATCH, IMAGES = 4, 16, 100


def method(name: str) -> Method:
    if name == "MoCoV2":
        narrow = {"channels": [8, 8, 16, 16]}
        return MoCoV2(backbone="resnet10t", backbone_args=narrow, dim=16, queue_length=64, bn_splits=2, momentum=0.9)
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}
    return DINO(
        backbone="vit_tiny_patch16_224",
        backbone_args=small,
        dim=16,
        hidden=32,
        prototypes=64,
        local_crops=2,
        warmup_epochs=1,
        teacher_momentum=0.9,
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str, at: int) -> None:
    """Kills the process at the `at`-th step, clustering chunk, or in the middle of writing the `at`-th checkpoint."""
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
        refresh = loop.Loop._refresh

        def refreshed(self: Any, *arguments: Any) -> None:
            told = self.observer.refreshing

            def refreshing(epoch: int) -> Any:
                progress = told(epoch)

                def chunk(*figures: int) -> None:
                    if counted():
                        die()
                    progress(*figures)

                return chunk

            self.observer.refreshing = refreshing
            refresh(self, *arguments)
            self.observer.refreshing = told

        loop.Loop._refresh = refreshed  # type: ignore[method-assign, assignment]
    elif where == "checkpoint":
        save = torch.save

        def saved(state: Any, path: Any) -> None:
            save(state, path)
            if counted():
                os.truncate(path, Path(path).stat().st_size // 2)
                die()

        checkpoint.torch.save = saved  # type: ignore[attr-defined]


def main(name: str, folder: str, where: str, at: str) -> None:
    torch.set_num_threads(1)
    if where != "never":
        arm(where, int(at))
    images = Shapes(images=IMAGES, size=16, cache=False)
    pretrain(
        images,
        method(name),
        Hierarchy(levels=(12, 4), negatives=5, start_epoch=2),
        out=folder,
        epochs=EPOCHS,
        batch_size=BATCH,
        accelerator="cpu",
        devices=1,
        checkpoint_minutes=0.0005,
        knn_every=2,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
