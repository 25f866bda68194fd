"""Z̃, the features K-means clusters (Alg. 2): from a pass over all images, or kept while training gave them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data.views.render import Batch
from hirl.hierarchy.ranks import Ranks
from hirl.methods.base import Method

NEVER = -1


class Bank:
    """The last z⁰ that training gave of every image, of unit length in half precision.

    Every process keeps what it saw itself; `epoch_of` tells which of them saw an image last.
    """

    def __init__(self, N: int, dim: int) -> None:
        self.features = torch.zeros(N, dim, dtype=torch.float16)
        self.epoch_of = torch.full((N,), NEVER, dtype=torch.int32)

    def collect(self, index: Tensor, z0: Tensor, epoch: int) -> None:
        where = index.cpu()
        self.features[where] = F.normalize(z0.float(), dim=1).half().cpu()
        self.epoch_of[where] = epoch

    def own(self, ranks: Ranks) -> Tensor:
        """The images that this process saw last, (n,). Within an epoch no two processes see the same image."""
        latest = ranks.max(self.epoch_of)
        return ((self.epoch_of == latest) & (latest != NEVER)).nonzero().flatten()

    def missing(self, ranks: Ranks) -> bool:
        """Whether some image has not been seen by any process."""
        return bool((ranks.max(self.epoch_of) == NEVER).any())

    def state_dict(self, ranks: Ranks) -> dict[str, Tensor]:
        """One bank of all processes' images, the same on each."""
        mine = torch.zeros_like(self.features)
        own = self.own(ranks)
        mine[own] = self.features[own]
        return {"features": ranks.sum(mine), "epoch_of": ranks.max(self.epoch_of)}

    def load_state_dict(self, state: dict[str, Tensor], ranks: Ranks) -> None:
        """The first process takes it all; the others begin anew."""
        self.features.copy_(state["features"])
        self.epoch_of.copy_(state["epoch_of"] if ranks.rank == 0 else torch.full_like(self.epoch_of, NEVER))


@torch.no_grad()
def embedded(method: Method, batches: Iterable[Batch], *, told: Callable[[int], None] | None = None) -> Tensor:
    """(n, D): z⁰ of images shown whole, in the order of the batches."""
    training = method.training
    method.eval()
    parts, done = [], 0
    for batch in batches:
        parts.append(method.embed(batch.views[0]).float().cpu())
        done += len(batch)
        if told is not None:
            told(done)
    method.train(training)
    return torch.cat(parts) if parts else torch.empty(0, method.dim)
