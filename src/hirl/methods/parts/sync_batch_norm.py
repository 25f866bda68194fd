"""Batch norm over the batches of all ranks, as if a single device held them all."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks
from hirl.encoders.adapter import AdaptedNetwork
from hirl.methods.base import full_precision
from hirl.methods.parts.mean_over_ranks import mean_over_ranks


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Normalise by the statistics of the rows of all ranks, which may have unequal numbers of them, during training.

    torch's own layer is for GPUs only, and DDP rejects it on a CPU: this one uses torch's kernels on a GPU and plain
    tensor operations on a CPU. Parameters and buffers are those of plain batch norm.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, like: nn.modules.batchnorm._BatchNorm) -> None:
        if not like.track_running_stats or like.momentum is None:
            size = ranks.world().size
            raise ValueError(f"{like} cannot be synchronised over {size} ranks: it has no running statistics")
        super().__init__(like.num_features, like.eps, like.momentum, like.affine)
        self.load_state_dict(like.state_dict())

    def forward(self, rows: Tensor) -> Tensor:
        """(B, C) or (B, C, H, W) → the same."""
        if not self.training:
            return F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        self.num_batches_tracked += 1
        if rows.device.type != "cpu":
            return self._by_kernels(rows)
        return self._by_operations(full_precision(rows)).to(rows.dtype)

    def _by_kernels(self, rows: Tensor) -> Tensor:
        from torch.nn.modules._functions import SyncBatchNorm as Kernels

        world = ranks.world()
        statistics = (self.running_mean, self.running_var, self.eps, self.momentum)
        normalised: Tensor = Kernels.apply(rows, self.weight, self.bias, *statistics, world.group, world.size)
        return normalised

    def _by_operations(self, rows: Tensor) -> Tensor:
        others = [axis for axis in range(rows.ndim) if axis != 1]
        rows_here = rows.new_tensor([rows.numel() / self.num_features])
        sums, per_rank = mean_over_ranks(torch.cat((rows.sum(others), rows_here))).tensor_split([-1])
        mean = (sums / per_rank).view([-1 if axis == 1 else 1 for axis in range(rows.ndim)])
        centred = rows - mean
        variance = mean_over_ranks(centred.square().sum(others, keepdim=True)) / per_rank
        with torch.no_grad():
            count = ranks.world().size * per_rank
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance.flatten() * count / (count - 1), self.momentum)
        scale = (variance + self.eps).rsqrt()
        if not self.affine:
            return centred * scale
        return torch.addcmul(self.bias.view_as(mean), centred, scale * self.weight.view_as(mean))


def synchronise_batch_norm(network: nn.Module) -> None:
    """Make every batch norm of a network take its statistics from all ranks; no change with a single process.

    Those of a frozen network, which uses stored statistics, stay as they are.
    """
    size = ranks.world().size
    if size == 1:
        return
    adapted = [module for module in network.modules() if isinstance(module, AdaptedNetwork)]
    frozen = {layer for module in adapted for layer in module.frozen.modules()}
    for name, module in list(network.named_modules()):
        if module in frozen or isinstance(module, SyncBatchNorm):
            continue
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d):
            network.set_submodule(name, SyncBatchNorm(module))
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{type(module).__name__} cannot be synchronised over {size} ranks: use one process, or a "
                "backbone with plain batch norm such as resnet50"
            )
