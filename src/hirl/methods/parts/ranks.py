"""Communication between the processes (ranks) of a run during a step; alone, every function is the identity."""

from __future__ import annotations

import inspect

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if size() > 1 else 0


def share(joined: Tensor) -> Tensor:
    """This rank's part of rows concatenated over the ranks in order."""
    return joined.chunk(size())[rank()]


def joined(mine: Tensor) -> Tensor:
    """The rows of all ranks, equally many each, in rank order. No gradient flows through."""
    if size() == 1:
        return mine
    parts = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(size())]
    dist.all_gather(parts, mine.contiguous())
    return torch.cat(parts)


def first(tensor: Tensor) -> Tensor:
    """The first rank's tensor, on every rank; written into `tensor`."""
    if size() > 1:
        dist.broadcast(tensor, 0)
    return tensor


def mean(tensor: Tensor) -> Tensor:
    """The mean over the ranks; written into `tensor`."""
    if size() > 1:
        dist.all_reduce(tensor)
        tensor /= size()
    return tensor


def ddp_options() -> dict[str, bool]:
    """Options with which DDP does not send buffers at every step: ours are kept equal, and a queue is large."""
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if newer else "broadcast_buffers": False}
