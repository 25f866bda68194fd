"""What the processes of a `torch.distributed` group tell each other; without a group every exchange is the identity."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """The processes that hold one set of rows between them."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def objects(self, mine: T) -> list[T]:
        """Everyone's small Python object, in rank order."""
        if self.group is None:
            return [mine]
        theirs: list[T | None] = [None] * self.size
        dist.all_gather_object(theirs, mine, group=self.group)
        return theirs  # type: ignore[return-value]  # all_gather_object has filled every place

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def first(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor, on every rank."""
        if self.group is None:
            return tensor
        carried = self._carried(tensor)
        dist.broadcast(carried, dist.get_global_rank(self.group, 0), group=self.group)
        return carried.to(tensor.device)

    def joined(self, tensor: Tensor) -> Tensor:
        """Everyone's tensor of the same shape, joined along the first dimension in rank order."""
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
        """A copy where the group's backend can carry it: NCCL moves nothing that is not on a GPU."""
        device = torch.device("cuda") if dist.get_backend(self.group) == "nccl" else torch.device("cpu")
        return tensor.to(device, copy=True).contiguous()
