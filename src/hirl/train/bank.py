"""Z̃, the features that are clustered (Alg. 2): embedded in a pass over all images, or kept from training in a bank."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data.views.render import Batch
from hirl.hierarchy.ranks import Ranks
from hirl.methods.base import Method

NEVER = -1


class Bank:
    """The latest z⁰ of every image from training, at unit length in half precision.

    Every process keeps the z⁰ of its own batches; `epoch_of` decides which process has the latest one of an image.
    """

    def __init__(self, N: int, dim: int) -> None:
        self.features = torch.zeros(N, dim, dtype=torch.float16)
        self.epoch_of = torch.full((N,), NEVER, dtype=torch.int32)

    def collect(self, index: Tensor, z0: Tensor, epoch: int) -> None:
        """Store z⁰ (B, D) of the images at `index` (B,)."""
        where = index.cpu()
        self.features[where] = F.normalize(z0.float(), dim=1).half().cpu()
        self.epoch_of[where] = epoch

    def own(self, ranks: Ranks) -> Tensor:
        """Return the images (n,) whose latest z⁰ is here. Within an epoch no image is trained on by two processes."""
        latest = ranks.max(self.epoch_of)
        return ((self.epoch_of == latest) & (latest != NEVER)).nonzero().flatten()

    def missing(self, ranks: Ranks) -> bool:
        """Return whether some image has no z⁰ on any process."""
        return bool((ranks.max(self.epoch_of) == NEVER).any())

    def state_dict(self, ranks: Ranks) -> dict[str, Tensor]:
        """Return one bank with the images of all processes, the same on each."""
        mine = torch.zeros_like(self.features)
        own = self.own(ranks)
        mine[own] = self.features[own]
        return {"features": ranks.sum(mine), "epoch_of": ranks.max(self.epoch_of)}

    def load_state_dict(self, state: dict[str, Tensor], ranks: Ranks) -> None:
        """Restore all images on the first process; the others start empty."""
        self.features.copy_(state["features"])
        self.epoch_of.copy_(state["epoch_of"] if ranks.rank == 0 else torch.full_like(self.epoch_of, NEVER))


@torch.no_grad()
def embed_batches(method: Method, batches: Iterable[Batch]) -> Tensor:
    """Return z⁰ (n, D) of uncropped images, in the order of the batches."""
    training = method.training
    method.eval()
    parts = [method.embed(batch.views[0]).float().cpu() for batch in batches]
    method.train(training)
    return torch.cat(parts) if parts else torch.empty(0, method.dim)
