"""A short run of DINO whose gradients are clipped, on any number of processes; used by test_clipped_processes.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from hirl.data import Shapes
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import DINO
from hirl.train.pretrain import pretrain

BATCH = 16


def main(folder: Path, devices: int, accumulate: int) -> None:
    torch.set_num_threads(1)
    method = DINO(
        backbone="vit_tiny_patch16_224",
        backbone_args={"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2},
        dim=16,
        hidden=32,
        prototypes=64,
        local_crops=2,
        warmup_epochs=0,
        frozen_epochs=0,
        drop_path=0.0,
        clip=0.003,
    )
    pretrain(
        Shapes(images=BATCH, size=16, cache=False),  # one step per epoch
        method,
        Hierarchy(levels=(4, 2), negatives=2, start_epoch=1, features="pass"),
        out=folder,
        epochs=2,
        batch_size=BATCH,
        accelerator="cpu",
        devices=devices,
        accumulate=accumulate,
        keep_every=1,
        knn_every=0,
        workers=0,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
