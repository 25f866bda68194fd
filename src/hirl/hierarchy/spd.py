"""Semantic path discrimination: the similarity of an image to a path (Eq. 2) and the loss on it (Eq. 3)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from hirl.hierarchy.tree import PrototypeTree

Sampling = Literal["batch", "image"]


def spd_loss(
    z: Tensor,
    tree: PrototypeTree,
    leaves: Tensor,
    *,
    negatives: int | None = 1000,
    sampling: Sampling = "batch",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Eq. 3 for representations z (B, L, D) whose images sit at `leaves` (B,) of the tree: a scalar.

    Every image is drawn towards the path of its own leaf and pushed from the paths of `negatives` other leaves,
    drawn without repeats; None, or more than there are, takes all M_1 − 1 of them.
    `sampling="image"` draws for each image, as the paper words it. `"batch"` draws once for all images, which turns
    the work into L small matrix products; it is the same in expectation, also in its gradient.
    `generator` lives on the device of z.

    Works in z's own float type, with sums of logs in float32 at least; values and gradients are finite for every z.
    """
    _check(z, tree, leaves, negatives, sampling)
    tree = tree if tree.device == z.device else tree.to(z.device)
    leaves = leaves.to(z.device)
    z = _unit(z)
    positive = _log_half_angle(
        torch.stack(
            [(z[:, level] * _like(z, nodes[tree.paths[leaves, level]])).sum(-1) for level, nodes in _levels(tree)]
        )
    )  # (L, B)
    loss = -positive.sum(0).mean()
    others = tree.levels[0] - 1
    count = others if negatives is None else min(negatives, others)
    if count == 0:
        return loss
    if sampling == "image" and count < others:
        drawn = _draw_per_image(leaves, others, count, generator)  # (B, K)
        excluded = None
    else:
        drawn, excluded = _draw_for_batch(leaves, others, count, generator)  # (K + 1,), (B, K + 1)
    log_s = torch.stack(
        [_log_similarity(z[:, level], nodes, tree.paths[drawn, level]) for level, nodes in _levels(tree)]
    ).sum(0)  # (B, K) or (B, K + 1): log s of Eq. 2
    if excluded is not None:
        log_s = log_s.masked_fill(excluded, -torch.inf)  # s = 0 adds nothing to the sum
    return loss - _log_one_minus_exp(log_s).sum(1).mean() / count


def _levels(tree: PrototypeTree) -> list[tuple[int, Tensor]]:
    return list(enumerate(tree.prototypes))


def _like(z: Tensor, prototypes: Tensor) -> Tensor:
    return prototypes.to(z.dtype)


def _draw_for_batch(
    leaves: Tensor, others: int, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """One draw of count + 1 leaves for all images, and for each image the one it does not use.

    That is its own leaf, or the last if its own was not drawn: every image keeps `count` leaves, each set of others
    equally likely.
    """
    drawn = torch.arange(others + 1, device=leaves.device)
    if count < others:
        drawn = torch.randperm(others + 1, device=leaves.device, generator=generator)[: count + 1]
    excluded = drawn == leaves[:, None]  # (B, K + 1)
    excluded[:, -1] |= ~excluded.any(1)
    return drawn, excluded


def _draw_per_image(leaves: Tensor, others: int, count: int, generator: torch.Generator | None) -> Tensor:
    """(B, K): for each image its own draw among the other leaves."""
    keys = torch.rand(len(leaves), others, device=leaves.device, generator=generator)
    drawn = keys.topk(count, dim=1, sorted=False).indices
    return drawn + (drawn >= leaves[:, None])


def _log_similarity(z: Tensor, prototypes: Tensor, nodes: Tensor) -> Tensor:
    """log((1 + cos)/2) of z (B, D) and the prototypes at `nodes` (K,), or (B, K) for nodes of each image's own."""
    if nodes.ndim == 1 and len(nodes) < len(prototypes):
        return _log_half_angle(z @ _like(z, prototypes[nodes]).T)
    every = _log_half_angle(z @ _like(z, prototypes).T)  # (B, M)
    return every[:, nodes] if nodes.ndim == 1 else every.gather(1, nodes)


def _log_half_angle(cosine: Tensor) -> Tensor:
    """log((1 + cos)/2), exact near cos = 1 and finite at cos = −1."""
    cosine = cosine.to(torch.promote_types(cosine.dtype, torch.float32))
    eps = torch.finfo(cosine.dtype).eps
    return torch.log1p((cosine.clamp(2 * eps - 1, 1) - 1) / 2)


def _log_one_minus_exp(log_s: Tensor) -> Tensor:
    """log(1 − s), exact for s near 0 and near 1, and finite where s rounds to 1."""
    return torch.log(-torch.expm1(log_s.clamp(max=-torch.finfo(log_s.dtype).eps)))


def _unit(z: Tensor) -> Tensor:
    """z at length 1 along the last dimension.

    Scaled by its largest value first, so that squares neither overflow nor vanish; a z too small to have a direction
    stays short, where F.normalize's gradient would overflow in half precision.
    """
    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    largest = wide.detach().abs().amax(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).eps)
    wide = wide / largest
    return (wide / torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp(min=1)).to(z.dtype)


def _check(z: Tensor, tree: PrototypeTree, leaves: Tensor, negatives: int | None, sampling: str) -> None:
    if z.ndim != 3 or not z.is_floating_point() or z.shape[1:] != (len(tree.levels), tree.dim):
        raise ValueError(
            f"z must be a float tensor of shape (B, {len(tree.levels)}, {tree.dim}) for this tree, "
            f"not {z.dtype} {tuple(z.shape)}"
        )
    if len(z) == 0:
        raise ValueError("z holds no image: a loss needs a batch of at least 1")
    if leaves.shape != z.shape[:1] or leaves.dtype != torch.int64:
        raise ValueError(f"leaves must be int64 of shape ({len(z)},) as z, not {leaves.dtype} {tuple(leaves.shape)}")
    # On a GPU looking at the values would make every step wait for it.
    if leaves.device.type == "cpu" and not 0 <= int(leaves.min()) <= int(leaves.max()) < tree.levels[0]:
        raise ValueError(f"leaves must lie in 0 … {tree.levels[0] - 1}, not {int(leaves.min())} … {int(leaves.max())}")
    if negatives is not None and negatives < 1:
        raise ValueError(f"negatives must be at least 1, or None for all, not {negatives}")
    if sampling not in get_args(Sampling):
        raise ValueError(f"sampling must be one of {', '.join(get_args(Sampling))}, not {sampling!r}")
