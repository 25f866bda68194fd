"""How one network is trained by one process or several."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
from lightning_fabric.strategies.ddp import DDPStrategy
from torch.nn.parallel import DistributedDataParallel


def strategy(accelerator: str, devices: int | str, nodes: int) -> DDPStrategy | str:
    """DDP for several processes, without sending buffers round: methods keep theirs equal, and a queue is large."""
    launched = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    here = torch.cuda.device_count() if devices == "auto" and accelerator in ("auto", "cuda") else devices
    several = nodes > 1 or launched > 1 or (isinstance(here, int) and here > 1)
    if not several:
        return "auto"
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
    return DDPStrategy(**options)
