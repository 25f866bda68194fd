"""Starting the processes of a command that train or evaluate together: itself, by torchrun or by SLURM."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from hirl import ranks

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

Precision: TypeAlias = Literal["32-true", "bf16-mixed", "16-mixed"]
T = TypeVar("T")
PATIENCE = timedelta(days=1)  # how long processes wait for the first one, where it works alone for long
# What gloo, NCCL and the store of a group say when a process on the other side has ended. Most are plain RuntimeErrors.
_LOST = re.compile(r"gloo|NCCL|ProcessGroup|TCPStore|closed by peer|reset by peer|broken pipe", re.IGNORECASE)


class LostProcess(ValueError):  # noqa: N818
    """Another of the processes that work together has ended."""


def launch(
    accelerator: str = "auto",
    *,
    devices: int | Literal["auto"] = 1,
    nodes: int = 1,
    precision: Precision = "32-true",
    timeout: timedelta = default_pg_timeout,
) -> Fabric:
    """Start the processes; each runs the same command and returns from here with its own Fabric.

    Nothing is started for a single device, nor if the processes are there already: then these are joined.

    accelerator: auto, cpu, cuda or mps, or a single device such as cuda:1
    devices: on this machine; auto for all GPUs, or one process without a GPU
    nodes: machines, on each of which the command is started
    timeout: how long a process waits for the others
    """
    from lightning_fabric import Fabric

    kind, _, place = accelerator.partition(":")
    devices, nodes = _counts(devices, nodes, gpus=torch.cuda.device_count() if kind in ("auto", "cuda") else 0)
    _check_device(kind, devices, precision)
    several = devices * nodes > 1
    on_cpu = kind == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())
    fabric = Fabric(
        accelerator=kind,
        devices=[int(place)] if kind == "cuda" and place and not several else devices,
        num_nodes=nodes,
        precision=precision,
        strategy=_strategy(timeout, on_cpu=on_cpu) if several else "auto",
    )
    _check_restarts()
    fabric.launch()
    return fabric


def process_count() -> int:
    """How many processes run this command already, started by torchrun, by srun or by `launch`."""
    everyone = ranks.world()
    if everyone.size > 1:
        return everyone.size
    return int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1")))


def is_first() -> bool:
    """Whether this process writes and prints: of those that work together one does."""
    everyone = ranks.world()
    if everyone.size > 1:
        return everyone.rank == 0
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def run_on_first(compute: Callable[[], T]) -> T:
    """Run `compute` on the first process; return its result, or raise its ValueError, on all."""
    everyone = ranks.world()
    if everyone.size == 1:
        return compute()
    outcome: list[Any] = [None, None]
    if everyone.rank == 0:
        try:
            outcome[0] = compute()
        except ValueError as error:
            outcome[1] = str(error)
    dist.broadcast_object_list(outcome, 0)
    if outcome[1] is not None:
        raise ValueError(outcome[1])
    found: T = outcome[0]
    return found


@contextmanager
def notice_lost_processes() -> Iterator[None]:
    """Raise LostProcess, one sentence, if a message cannot be exchanged because the process on the other side ended."""
    try:
        yield
    except RuntimeError as error:
        total, rank = process_count(), os.environ.get("RANK", os.environ.get("SLURM_PROCID", ranks.world().rank))
        if total == 1 or not (isinstance(error, dist.DistError) or _LOST.search(str(error))):
            raise
        raise LostProcess(
            f"process {rank} of {total} ends because another one was lost: see why in that one's "
            "output or on its machine; the same command continues from the last checkpoint"
        ) from error


def count_processes(accelerator: str, *, devices: int | Literal["auto"], nodes: int) -> int:
    """How many processes `launch` starts or joins."""
    kind = accelerator.partition(":")[0]
    here, machines = _counts(devices, nodes, gpus=torch.cuda.device_count() if kind in ("auto", "cuda") else 0)
    return here * machines


def _counts(devices: int | Literal["auto"], nodes: int, *, gpus: int) -> tuple[int, int]:
    """Processes per machine, and machines."""
    if devices != "auto" and devices < 1:
        raise ValueError(f"devices is {devices}, but must be at least 1")
    total, variables = process_count(), os.environ
    if total == 1 and "LOCAL_WORLD_SIZE" not in variables:
        return max(1, gpus) if devices == "auto" else devices, nodes
    if "LOCAL_WORLD_SIZE" in variables:  # by torchrun
        here = int(variables["LOCAL_WORLD_SIZE"])
    elif "WORLD_SIZE" in variables or "SLURM_STEP_NUM_TASKS" not in variables:  # by an earlier `launch`
        here = total // nodes
    else:
        here = total // int(variables.get("SLURM_STEP_NUM_NODES", "1"))
        if "SLURM_NTASKS_PER_NODE" not in variables:  # which Lightning insists on
            raise ValueError(f"SLURM was asked for {total} tasks, but must be asked for --ntasks-per-node={here}")
    if devices not in ("auto", 1, here, total):
        starter = "torchrun" if "WORLD_SIZE" in variables else "SLURM"
        raise ValueError(f"devices is {devices}, but {starter} has started {total} processes: leave it out")
    return here, total // here


def _check_restarts() -> None:
    """Warn of a torchrun whose restarts would fail: new processes would look for lost ones at their old addresses.

    torchrun keeps one store over all restarts, with the addresses in it (pytorch issues 135712 and 167288).
    """
    variables = os.environ
    restarts = int(variables.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and is_first():
        warnings.warn(
            f"torchrun is to restart lost processes (--max_restarts {restarts}), but these will not find each other "
            "unless torchrun itself is started with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment",
            stacklevel=3,
        )


def _check_device(kind: str, devices: int, precision: Precision) -> None:
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if not {"cuda": cuda, "mps": mps}.get(kind, True):
        raise ValueError(f"accelerator is {kind!r}, but there is no such device here: use auto or cpu")
    if cuda and kind in ("auto", "cuda") and devices > torch.cuda.device_count():
        raise ValueError(f"devices is {devices}, but there are {torch.cuda.device_count()} GPUs here")
    if precision == "16-mixed" and (kind == "cpu" or not (cuda or mps)):
        raise ValueError("precision 16-mixed needs a GPU: choose bf16-mixed or 32-true on a CPU")


def _buffers_stay() -> dict[str, Any]:
    """Options with which DDP does not send buffers at every step: ours are kept equal, and a queue is large."""
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if newer else "broadcast_buffers": False}


def _strategy(timeout: timedelta, *, on_cpu: bool) -> DDPStrategy:
    """DDP, in which several processes on CPUs end in the same bits after a restart.

    DDP orders its buckets of gradients anew after its first step, and how a sum over three or more processes is rounded
    depends on a gradient's place in its bucket. So on CPUs each gradient is summed on its own.
    """
    from lightning_fabric.strategies.ddp import DDPStrategy

    class ExactDDP(DDPStrategy):
        def setup_module(self, module: nn.Module) -> DistributedDataParallel:
            parallel = super().setup_module(module)
            if on_cpu and dist.get_world_size() > 2:
                parallel.register_comm_hook(None, lambda _, bucket: _mean_of_each(bucket))
            return parallel

    return ExactDDP(timeout=timeout, **_buffers_stay())


def _mean_of_each(bucket: Any) -> torch.futures.Future[Tensor]:
    """The mean over the processes of each gradient of a bucket."""
    gradients = bucket.buffer().div_(dist.get_world_size())
    for gradient in gradients.split([one.numel() for one in bucket.gradients()]):
        dist.all_reduce(gradient)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done
