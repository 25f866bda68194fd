"""Multi-crop of SwAV, DINO and iBOT: equal crops share a batch, each view predicts the others' global targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor


def by_size(crops: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Crops of V views, each (B, C, s, s): the consecutive ones of equal size, which a network takes together."""
    for _, equal in groupby(crops, key=lambda crop: crop.shape[-1]):
        yield list(equal)


def cross_view_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy between every view's softmax and the target of every global view except its own.

    logits: (V, B, K), already divided by the temperature, with the two global views first; targets: (2, B, K), each row
    a distribution. With logits s, −p · log softmax(s) = logsumexp(s) − p · s, summed over the targets of a view at
    once: no V × B × K log-probabilities are stored.
    """
    aligned = torch.einsum("vbk,vbk->b", logits[:2], targets.flip(0))
    aligned = aligned + torch.einsum("vbk,bk->b", logits[2:], targets.sum(0))
    totals = logits.logsumexp(-1)  # (V, B)
    terms = 2 * len(logits) - 2
    return (totals[:2].sum(0) + 2 * totals[2:].sum(0) - aligned).mean() / terms
