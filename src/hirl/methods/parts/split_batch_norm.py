"""Batch norm over groups of a batch, as if each group were on its own device (MoCo, Sec. 3.3: shuffling BN)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks

# Values that a GPU normalises in one call. Two copies of them take about as long as the launches that they save: an
# estimate from a GPU's bandwidth, not measured. A CPU always goes group by group: one call measured 1.1 to 7 times
# slower there, and its sums round differently.
_LARGEST_IN_ONE_CALL = 1 << 23


class SplitBatchNorm2d(nn.BatchNorm2d):
    """Normalise each of `groups` runs of consecutive images by its own statistics during training.

    Running statistics are updated with the mean over the groups. Parameters and buffers are those of BatchNorm2d.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, like: nn.BatchNorm2d, groups: int) -> None:
        if not like.track_running_stats or not like.affine or like.momentum is None:
            raise ValueError(f"bn_splits is {groups}, but {like} cannot be split: use bn_splits 1")
        super().__init__(like.num_features, like.eps, like.momentum)
        self.groups = groups
        self.load_state_dict(like.state_dict())

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        if len(images) % self.groups:
            raise ValueError(
                f"a batch of {len(images)} images per rank cannot be split into {self.groups} equal groups"
            )
        means = self.running_mean.repeat(self.groups, 1)  # (groups, C): each group updates its own copy
        variances = self.running_var.repeat(self.groups, 1)
        in_one_call = images.device.type != "cpu" and images.numel() <= _LARGEST_IN_ONE_CALL
        normalise = self._in_one_call if in_one_call else self._group_by_group
        normalised = normalise(images, means, variances)
        with torch.no_grad():
            self.running_mean.copy_(means.mean(0))
            self.running_var.copy_(variances.mean(0))
            self.num_batches_tracked += 1
        return normalised

    def _group_by_group(self, images: Tensor, means: Tensor, variances: Tensor) -> Tensor:
        parts = [
            F.batch_norm(part, mean, variance, self.weight, self.bias, True, self.momentum, self.eps)
            for part, mean, variance in zip(images.chunk(self.groups), means, variances, strict=True)
        ]
        return torch.cat(parts)

    def _in_one_call(self, images: Tensor, means: Tensor, variances: Tensor) -> Tensor:
        """The channels of all groups side by side; the result is in the channels-last layout."""
        groups = images.permute(0, 2, 3, 1).unflatten(0, (self.groups, -1))  # (groups, n, H, W, C)
        wide = groups.permute(1, 2, 3, 0, 4).flatten(3).permute(0, 3, 1, 2)  # (n, groups · C, H, W)
        weight, bias = self.weight.repeat(self.groups), self.bias.repeat(self.groups)
        statistics = means.view(-1), variances.view(-1)
        wide = F.batch_norm(wide, *statistics, weight, bias, True, self.momentum, self.eps)
        groups = wide.permute(0, 2, 3, 1).unflatten(3, (self.groups, -1)).permute(3, 0, 1, 2, 4)
        return groups.flatten(0, 1).permute(0, 3, 1, 2)


def fitting_groups(images: int, ranks: int, *, most: int) -> int | None:
    """The number of equal groups of 2 or more, at most `most`, that so many ranks can make of so many images.

    At least one group per rank; 1, which is plain batch norm, only if it is asked for or nothing else fits; None if no
    number fits.
    """
    fitting = [groups for groups in range(ranks, images // 2 + 1, ranks) if images % groups == 0]
    largest = max((groups for groups in fitting if groups <= max(most, ranks)), default=None)
    if largest == 1 < most:
        return next((groups for groups in fitting if groups > most), 1)
    return largest


def split_batch_norm(network: nn.Module, groups: int) -> None:
    """Make every batch norm of a network normalise `groups` groups of its batch separately."""
    for name, module in list(network.named_modules()):
        if type(module) is nn.BatchNorm2d:
            network.set_submodule(name, SplitBatchNorm2d(module, groups))
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(f"bn_splits is {groups}, but {type(module).__name__} cannot be split: use bn_splits 1")


def average_statistics(network: nn.Module) -> None:
    """Replace running statistics by their mean over the ranks, so that every rank holds the same network.

    Those of layers in eval mode are the same already, and stay so to the bit: a mean of three would be rounded.
    """
    world = ranks.world()
    if world.size == 1:
        return
    statistics = [
        buffer
        for module in network.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if not statistics:
        return
    flat = world.mean(torch.cat([buffer.flatten() for buffer in statistics]))
    torch._foreach_copy_(statistics, list(flat.split([buffer.numel() for buffer in statistics])))
