"""Starting the processes of a run: one, or several that train one network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from hirl.methods.parts import ranks

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


def launch(*, accelerator: str, devices: int | str, nodes: int, precision: Precision) -> Fabric:
    """Start the processes; each returns from here with its own Fabric."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(accelerator, True):
        raise ValueError(f"accelerator is {accelerator!r}, but there is no such device here: use auto or cpu")
    if devices == "auto" and "LOCAL_WORLD_SIZE" in os.environ:  # torchrun has started the processes already
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        precision=precision,
        strategy=_strategy(accelerator, devices, nodes),
    )
    fabric.launch()
    return fabric


@contextmanager
def memory_advice() -> Iterator[None]:
    """Turn running out of memory into a ValueError that says which options help."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_out_of_memory(error):
            raise
        raise ValueError(
            "out of memory: use a smaller batch_size, split the batch with accumulate, a smaller image_size or "
            "backbone, or precision bf16-mixed"
        ) from error


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _strategy(accelerator: str, devices: int | str, nodes: int) -> DDPStrategy | str:
    """Return DDP for several processes. It does not send buffers: methods keep theirs equal, and a queue is large."""
    launched = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    here = torch.cuda.device_count() if devices == "auto" and accelerator in ("auto", "cuda") else devices
    several = nodes > 1 or launched > 1 or (isinstance(here, int) and here > 1)
    if not several:
        return "auto"
    options: dict[str, Any] = {**ranks.ddp_options()}
    return DDPStrategy(**options)
