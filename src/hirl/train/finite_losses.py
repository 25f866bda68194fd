"""Checks that losses are finite: collects them over several steps and reads them at once, so a GPU rarely waits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hirl.ranks import Ranks


class NotFinite(Exception):  # noqa: N818
    """The loss is NaN or infinite. Holds step, loss and images of the batch; raised on every process."""

    def __init__(self, step: int, loss: float, index: Tensor) -> None:
        super().__init__(step, loss)
        self.step, self.loss, self.index = step, loss, index


class FiniteLosses:
    """The losses since the last check."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._unchecked: list[tuple[int, Tensor, Tensor]] = []  # step, loss and images

    def add(self, step: int, loss: Tensor, index: Tensor) -> None:
        self._unchecked.append((step, loss.detach(), index))

    def check(self) -> None:
        """Raise NotFinite, on every process, if a loss since the last check is not finite on one of them."""
        unchecked, self._unchecked = self._unchecked, []
        if not unchecked:  # on one process means on all
            return
        losses = torch.stack([loss.float() for _, loss, _ in unchecked])
        bad = self.ranks.max((~losses.isfinite()).int())
        if not bad.any():  # the only point where the device is waited for
            return
        step, loss, index = unchecked[int(bad.nonzero()[0])]
        shares = self.ranks.gather_objects((float(loss), index.tolist()))
        found = [share for share in shares if not math.isfinite(share[0])]
        raise NotFinite(step, found[0][0], torch.tensor([image for _, images in found for image in images]))
