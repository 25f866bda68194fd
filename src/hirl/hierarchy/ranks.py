"""Communication between the processes of a `torch.distributed` group; without a group everything stays as it is."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """The processes that together hold one set of rows."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def objects(self, mine: T) -> list[T]:
        """Gather a small Python object from every rank, in rank order."""
        if self.group is None:
            return [mine]
        gathered: list[T | None] = [None] * self.size
        dist.all_gather_object(gathered, mine, group=self.group)
        return gathered  # type: ignore[return-value]  # all_gather_object has filled every entry

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def first(self, tensor: Tensor) -> Tensor:
        """Return the first rank's tensor on every rank."""
        if self.group is None:
            return tensor
        carried = self._carried(tensor)
        dist.broadcast(carried, dist.get_global_rank(self.group, 0), group=self.group)
        return carried.to(tensor.device)

    def joined(self, tensor: Tensor) -> Tensor:
        """Concatenate every rank's tensor, all of the same shape, along the first dimension in rank order."""
        if self.group is None:
            return tensor
        carried = self._carried(tensor)
        parts = [torch.empty_like(carried) for _ in range(self.size)]
        dist.all_gather(parts, carried, group=self.group)
        return torch.cat(parts).to(tensor.device)

    def _reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if self.group is None:
            return tensor
        carried = self._carried(tensor)
        dist.all_reduce(carried, op, group=self.group)
        return carried.to(tensor.device)

    def _carried(self, tensor: Tensor) -> Tensor:
        """Return a copy on a device that the group's backend can send from: NCCL needs a GPU."""
        device = torch.device("cuda") if dist.get_backend(self.group) == "nccl" else torch.device("cpu")
        return tensor.to(device, copy=True).contiguous()
