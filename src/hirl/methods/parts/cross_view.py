"""The loss of SwAV, DINO and iBOT: every view of an image predicts the targets of the other global views."""

from __future__ import annotations

import torch
from torch import Tensor


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
