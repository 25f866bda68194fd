"""Communication between the processes (ranks) of a `torch.distributed` group; alone, every function is the identity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


_alone = ContextVar("_alone", default=False)


def world() -> Ranks:
    """All processes of the run."""
    if _alone.get():
        return Ranks(None)
    return Ranks(dist.group.WORLD if dist.is_available() and dist.is_initialized() else None)


@contextmanager
def alone() -> Iterator[None]:
    """Let `world` be this process alone, for work that each process does by itself."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


class Ranks:
    """The processes of a group, or this process alone. No gradient flows through, and no argument is changed.

    `hirl.methods.parts.mean_over_ranks` is the mean with its gradient.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def share(self, rows: Tensor) -> Tensor:
        """This rank's part of rows that are concatenated over the ranks in order."""
        return rows.chunk(self.size)[self.rank]

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate every rank's tensor, all of the same shape, along the first dimension in rank order."""
        if self.size == 1:
            return tensor
        sent = tensor.to(self._device(tensor)).contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(parts, sent, group=self.group)
        return torch.cat(parts).to(tensor.device)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the first rank's tensor on every rank."""
        if self.size == 1:
            return tensor
        assert self.group is not None
        sent = self._copied(tensor)
        dist.broadcast(sent, dist.get_global_rank(self.group, 0), group=self.group)
        return sent.to(tensor.device)

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def mean(self, tensor: Tensor) -> Tensor:
        return tensor if self.size == 1 else self.sum(tensor).div_(self.size)

    def max(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def gather_objects(self, mine: T) -> list[T]:
        """Gather a small Python object from every rank, in rank order."""
        if self.size == 1:
            return [mine]
        gathered: list[T | None] = [None] * self.size
        dist.all_gather_object(gathered, mine, group=self.group)
        return gathered  # type: ignore[return-value]  # all_gather_object has filled every entry

    def _reduced(self, tensor: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size == 1:
            return tensor
        sent = self._copied(tensor)
        dist.all_reduce(sent, op, group=self.group)
        return sent.to(tensor.device)

    def _copied(self, tensor: Tensor) -> Tensor:
        """A contiguous copy, which receives the result, on a device that the group can send from."""
        return torch.empty_like(
            tensor, device=self._device(tensor), memory_format=torch.contiguous_format, requires_grad=False
        ).copy_(tensor.detach())

    def _device(self, tensor: Tensor) -> torch.device:
        """The tensor's own device if the group's backend can send from it: NCCL needs a GPU, gloo the CPU."""
        backend = dist.get_backend(self.group)
        if backend == "nccl" and not tensor.is_cuda:
            return torch.device("cuda")
        return torch.device("cpu") if backend == "gloo" else tensor.device
