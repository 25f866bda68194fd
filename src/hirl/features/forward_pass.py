"""The one pass of a network over images: unaugmented, in eval mode, without gradients.

Training embeds images in it for clustering and for KNN; evaluations and pages get their features from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from hirl.data.views.render import Batch

Outputs = tuple[Tensor, Tensor]  # images (n,) and the network's outputs for them (n, …) in single precision


@torch.no_grad()
def forward_pass(
    network: nn.Module, batches: Iterable[Batch], *, apply: Callable[[Tensor], Tensor] | None = None
) -> Iterator[Outputs]:
    """Per batch its readable images, on the CPU, and the outputs for them, on the network's device.

    `apply`: a function of the network to call instead of the network itself.
    """
    training = network.training
    network.eval()
    try:
        for batch in batches:
            outputs = (network if apply is None else apply)(batch.views[0]).float()
            index = batch.index.cpu()
            yield (index, outputs) if batch.readable.all() else (index[batch.readable], outputs[batch.readable])
    finally:
        network.train(training)


def collected_outputs(
    network: nn.Module, batches: Iterable[Batch], *, apply: Callable[[Tensor], Tensor] | None = None, width: int = 0
) -> Outputs:
    """The readable images (n,) in the order of the batches, and the outputs for all of them, on the CPU.

    `width`: of the outputs, in case a process has no batch at all.
    """
    found = [(index, rows.cpu()) for index, rows in forward_pass(network, batches, apply=apply)]
    if not found:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, width)
    index, outputs = zip(*found, strict=True)
    return torch.cat(index), torch.cat(outputs)
