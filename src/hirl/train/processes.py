"""Starting the processes of a run: one, or several that train one network."""

from __future__ import annotations

import inspect
import os
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


def launch(*, accelerator: str, devices: int | str, nodes: int, precision: Precision) -> Fabric:
    """Start the processes; each returns from here with its own Fabric."""
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        precision=precision,
        strategy=_strategy(accelerator, devices, nodes),
    )
    fabric.launch()
    return fabric


def _strategy(accelerator: str, devices: int | str, nodes: int) -> DDPStrategy | str:
    """Return DDP for several processes. It does not send buffers: methods keep theirs equal, and a queue is large."""
    launched = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    here = torch.cuda.device_count() if devices == "auto" and accelerator in ("auto", "cuda") else devices
    several = nodes > 1 or launched > 1 or (isinstance(here, int) and here > 1)
    if not several:
        return "auto"
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
    return DDPStrategy(**options)
