"""Z̃, the features that are clustered (Alg. 2): embedded in a pass over all images, or kept from training in a bank.

The paper uses the pass, and so do the ImageNet recipes. The bank avoids it, but its features differ: z⁰ of augmented
views instead of the uncropped image, with batch norm in training mode, by the encoders of up to some epochs
ago instead of the current one, in half precision. It is the default elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.ranks import Ranks

NEVER = -1
COPY_EVERY = {"cpu": 1}  # batches of z⁰ that stay on their device until they are copied together
COPY_EVERY_ELSEWHERE = 20  # a copy makes a GPU wait


class Bank:
    """The latest z⁰ of every image from training, at unit length in half precision, and its mean over epochs.

    Every process keeps the z⁰ of its own batches. `step_of` decides which process owns an image: the one that stored it
    last. If several stored it at the same step, because it stood in for an unreadable image, the lowest rank owns it.

    z⁰ of one augmented view says as much about the crop as about the image. `momentum` is the share of the earlier
    epochs in the mean that is clustered; 0 clusters the latest z⁰.
    """

    def __init__(self, N: int, dim: int, *, momentum: float = 0.0) -> None:
        self.features = torch.zeros(N, dim, dtype=torch.float16)
        self.step_of = torch.full((N,), NEVER, dtype=torch.int32)
        self.unreadable = torch.zeros(N, dtype=torch.bool)  # the same on every process
        self.momentum = momentum
        self.means: Tensor | None = None  # (N, D), the same on every process
        self._pending: list[tuple[Tensor, Tensor, int]] = []  # collected, but still on the device

    def collect(self, index: Tensor, z0: Tensor, step: int) -> None:
        """Store z⁰ (B, D) of the images at `index` (B,); `step` is the number of steps including this one."""
        self._pending.append((index, F.normalize(z0.float(), dim=1).half(), step))
        if len(self._pending) >= COPY_EVERY.get(z0.device.type, COPY_EVERY_ELSEWHERE):
            self._store()

    def _store(self) -> None:
        """Copy what has been collected; to be called before `features` or `step_of` is read."""
        if not self._pending:
            return
        counts = [len(index) for index, _, _ in self._pending]
        index = torch.cat([index for index, _, _ in self._pending]).cpu().split(counts)
        units = torch.cat([units for _, units, _ in self._pending]).cpu().split(counts)
        for where, rows, (_, _, step) in zip(index, units, self._pending, strict=True):
            self.features[where] = rows
            self.step_of[where] = step
        self._pending = []

    def replace(self, index: Tensor, z0: Tensor, step: int, ranks: Ranks) -> None:
        """Store z⁰ of all images from a pass, in which no image came to two processes, in place of everything else."""
        self._pending = []
        self.step_of.fill_(NEVER)
        self.features.zero_()
        self.collect(index, z0, step)
        self._store()
        self.unreadable = ranks.max(self.step_of) == NEVER

    def owned_images(self, ranks: Ranks) -> Tensor:
        """Return the images (n,) that this process owns; each image that was ever stored has exactly one owner."""
        self._store()
        claim = self.step_of.long() * ranks.size + (ranks.size - 1 - ranks.rank)
        stored = self.step_of != NEVER
        own = ((claim == ranks.max(claim)) & stored).nonzero().flatten()
        owned, known = int(ranks.sum(torch.tensor([len(own)]))), int((ranks.max(stored.int()) > 0).sum())
        if owned != known:
            raise RuntimeError(f"{owned} images are owned by the {ranks.size} processes, but there are {known}")
        return own

    def missing(self, ranks: Ranks) -> bool:
        """Return whether some readable image has no z⁰ on any process."""
        self._store()
        return bool(((ranks.max(self.step_of) == NEVER) & ~self.unreadable).any())

    def clustering_features(self, ranks: Ranks) -> tuple[Tensor, Tensor]:
        """Return the images (n,) that this process owns and the features of them to cluster (n, D), once per epoch.

        The mean over epochs begins at the first call, so that runs with any momentum start from one stage one.
        """
        own = self.owned_images(ranks)
        if self.momentum == 0:
            return own, self.features[own]
        latest = self._gathered(own, ranks).float()
        if self.means is not None:
            latest = F.normalize(self.momentum * self.means.float() + (1 - self.momentum) * latest, dim=1)
        self.means = latest.half()
        return own, self.means[own]

    def _gathered(self, own: Tensor, ranks: Ranks) -> Tensor:
        """Return the latest z⁰ of all images, (N, D), from their owners; 0 for images without one."""
        if ranks.size == 1:  # it owns all there are: no copy of them
            return self.features
        mine = torch.zeros_like(self.features)
        mine[own] = self.features[own]
        return ranks.sum(mine)

    def state_dict(self, ranks: Ranks) -> dict[str, Tensor]:
        """Return one bank with the images of all processes, the same on each; of a single process it is no copy."""
        features = self._gathered(self.owned_images(ranks), ranks)
        state = {"features": features, "step_of": ranks.max(self.step_of), "unreadable": self.unreadable}
        return state if self.means is None else state | {"means": self.means}

    def load_state_dict(self, state: dict[str, Any], ranks: Ranks) -> None:
        """Restore all images on the first process; the others start empty."""
        self._pending = []
        self.features.copy_(state["features"])
        self.means = state["means"].clone() if "means" in state else None
        self.step_of.copy_(state["step_of"] if ranks.rank == 0 else torch.full_like(self.step_of, NEVER))
        self.unreadable = state["unreadable"].clone()
