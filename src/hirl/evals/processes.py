"""The processes that evaluate an encoder together: those that torchrun started, or that `devices` asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from hirl.methods.parts import ranks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Precision: TypeAlias = Literal["32-true", "bf16-mixed", "16-mixed"]
Found = TypeVar("Found")
PATIENCE = timedelta(days=1)  # while the first process does alone what cannot be shared


def launch(device: torch.device, devices: int) -> torch.device:
    """Start further processes, each of which runs the same command and returns from here, with its own device.

    Nothing is started for a single device, or if torchrun has started the processes already.
    """
    if devices < 1:
        raise ValueError(f"devices is {devices}, but must be at least 1")
    launched = _launched()
    if launched > 1 and devices not in (1, launched, _here(launched)):
        raise ValueError(f"devices is {devices}, but torchrun has started {launched} processes: leave it out")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(f"devices is {devices}, but there are {torch.cuda.device_count()} GPUs here")
    if max(devices, launched) == 1:
        return device
    return _fabric(device, "32-true", devices).device


def join_processes(device: torch.device, precision: Precision) -> Fabric:
    """Lightning's Fabric for this process, connected to the others."""
    if precision == "16-mixed" and device.type == "cpu":
        raise ValueError("precision 16-mixed needs a GPU: choose bf16-mixed or 32-true on a CPU")
    return _fabric(device, precision, 1)


def _fabric(device: torch.device, precision: Precision, devices: int) -> Fabric:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    launched = _launched()
    if max(devices, launched) == 1:
        chosen: Any = [device.index or 0] if device.type == "cuda" else 1
        return Fabric(accelerator=device.type, devices=chosen, precision=precision)
    here, nodes = (_here(launched), launched // _here(launched)) if launched > 1 else (devices, 1)
    options: dict[str, Any] = {**ranks.ddp_options()}  # batch norm keeps its statistics equal by itself
    strategy = DDPStrategy(timeout=PATIENCE, **options)
    fabric = Fabric(accelerator=device.type, devices=here, num_nodes=nodes, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def _launched() -> int:
    """How many processes run this command already."""
    return ranks.size() if ranks.size() > 1 else int(os.environ.get("WORLD_SIZE", "1"))


def _here(launched: int) -> int:
    """Those of them on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(launched)))


def is_first() -> bool:
    """Whether this process writes and prints: of those that work together one does."""
    if ranks.size() > 1:
        return ranks.rank() == 0
    return os.environ.get("RANK", "0") == "0"


def by_the_first(compute: Callable[[], Found]) -> Found:
    """What `compute` gives on the first process, on all of them; its ValueError is raised on all of them too."""
    if ranks.size() == 1:
        return compute()
    outcome: list[Any] = [None, None]
    if ranks.rank() == 0:
        try:
            outcome[0] = compute()
        except ValueError as error:
            outcome[1] = str(error)
    dist.broadcast_object_list(outcome, 0)
    if outcome[1] is not None:
        raise ValueError(outcome[1])
    found: Found = outcome[0]
    return found


def gathered(mine: Found) -> list[Found]:
    """What each process has, in their order."""
    if ranks.size() == 1:
        return [mine]
    found: list[Any] = [None] * ranks.size()
    dist.all_gather_object(found, mine)
    return found
