"""The processes that train a detector together: those that torchrun started, else this one alone."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy


def join_processes(device: torch.device, precision: Literal["32-true", "bf16-mixed", "16-mixed"]) -> Fabric:
    """Lightning's Fabric for this process, connected to the others."""
    if precision == "16-mixed" and device.type == "cpu":
        raise ValueError("precision 16-mixed needs a GPU: choose bf16-mixed or 32-true on a CPU")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1:
        devices: Any = [device.index or 0] if device.type == "cuda" else 1
        return Fabric(accelerator=device.type, devices=devices, precision=precision)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
    # Batch norm keeps its statistics equal by itself.
    strategy = DDPStrategy(broadcast_buffers=False)
    fabric = Fabric(
        accelerator=device.type, devices=here, num_nodes=ranks // here, strategy=strategy, precision=precision
    )
    fabric.launch()
    return fabric
