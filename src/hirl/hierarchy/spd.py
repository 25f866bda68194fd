"""Semantic path discrimination: the similarity of an image to a path (Eq. 2) and the loss on it (Eq. 3).

`node_loss` is another loss for the same purpose, with a softmax over the nodes of each level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    """Return the loss of Eq. 3, a scalar, for representations z (B, L, D) of images at `leaves` (B,) of the tree.

    Every image is drawn towards the path of its own leaf and pushed away from the paths of `negatives` other leaves,
    drawn without replacement; None, or more than there are, takes all M_1 − 1 of them.
    `sampling="image"` draws for each image, as in the paper. `"batch"` draws once for all images, which reduces the
    work to L small matrix products; loss and gradient are the same in expectation.
    `generator` must be on the device of z.

    Computes in float32 at least, whatever the type of z, under autocast too; values and gradients are always finite.
    """
    _check(z, tree, leaves)
    check_sampling(negatives, sampling)
    tree = tree if tree.device == z.device else tree.to(z.device)
    leaves = leaves.to(z.device)
    others = tree.levels[0] - 1
    count = others if negatives is None else min(negatives, others)
    if sampling == "image" and count < others:
        drawn, excluded = _draw_per_image(leaves, others, count, generator), None  # (B, K)
    else:
        drawn, excluded = _draw_for_batch(leaves, others, count, generator)  # (K + 1,)
    with torch.autocast(z.device.type, enabled=False):
        loss: Tensor = _PathDiscrimination.apply(z, tree, leaves, drawn, excluded)
    return loss


def node_loss(z: Tensor, tree: PrototypeTree, leaves: Tensor, *, temperature: float = 0.07) -> Tensor:
    """Return a cross-entropy, the mean over levels, for representations z (B, L, D) of images at `leaves` (B,).

    At each level the classes are its nodes, and an image's logits are its cosines with their prototypes, divided by
    `temperature`. An image that is much nearer to its own node than to all others is no longer pulled, so that images
    of a node stay distinct; the loss of Eq. 3 pulls until they are all equal to the prototype.
    """
    _check(z, tree, leaves)
    tree = tree if tree.device == z.device else tree.to(z.device)
    paths = tree.paths[leaves.to(z.device)]  # (B, L)
    with torch.autocast(z.device.type, enabled=False):
        unit = F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=2) / temperature
        logits = (unit[:, level] @ nodes.to(unit.dtype).T for level, nodes in enumerate(tree.prototypes))
        terms = [F.cross_entropy(some, own) for some, own in zip(logits, paths.unbind(1), strict=True)]
    return torch.stack(terms).mean()


class _PathDiscrimination(torch.autograd.Function):
    """Eq. 2–3 with an explicit gradient: a third of the operations that autograd would need."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, tree: PrototypeTree, leaves: Tensor, drawn: Tensor, excluded: Tensor | None
    ) -> Tensor:
        B, L, _ = z.shape
        negatives = max(drawn.shape[-1] - (excluded is not None), 1)
        eps = torch.finfo(torch.promote_types(z.dtype, torch.float32)).eps
        unit, pull_to_z = _unit(z)  # (B, L, D)

        # 1 + cos, twice a factor of Eq. 2, of the own path and of the drawn ones. Rounding leaves a few outside 0 … 2.
        own = _own_path(tree, leaves).to(unit.dtype)  # (B, L, D)
        own_rises = (unit * own).sum(2).add_(1)  # (B, L)
        own_inside = own_rises.clamp(2 * eps, 2)
        cosines, pulls = zip(*map(_cosines, unit.unbind(1), tree.prototypes, tree.paths[drawn].unbind(-1)), strict=True)
        rises = torch.stack(cosines).add_(1).clamp_(min=2 * eps)  # (L, B, leaves)
        minus_s = rises.prod(0).mul_(-(0.5**L))  # Eq. 2, (B, leaves)
        if excluded is not None:
            minus_s.scatter_(1, excluded[:, None], 0)

        # Eq. 3: log1p(−s) is exact for s near 0 and near 1, and finite because it is cut off where s rounds to 1.
        log_rest = minus_s.clamp(min=eps - 1).log1p_()  # log(1 − s)
        loss = ((own_inside / 2).log().sum() + log_rest.sum() / negatives) / -B
        if ctx.needs_input_grad[0]:
            own_slope = (-1 / B / own_inside).masked_fill_(own_inside != own_rises, 0)  # (B, L)
            # −d log(1 − s) / d cos is s / (1 − s) / (1 + cos); 0 where it is cut off
            minus_s = F.threshold(minus_s, eps - 1, 0)
            slopes = (minus_s / (1 + minus_s)).mul_(-1 / (B * negatives)) / rises  # (L, B, leaves)
            slope = torch.stack([pull(level) for pull, level in zip(pulls, slopes, strict=True)], dim=1)  # (B, L, D)
            # Not in z's type before the loss's own gradient, which includes a gradient scaler's factor, is known.
            ctx.save_for_backward(pull_to_z(slope.addcmul_(own_slope[..., None], own)))
            ctx.dtype = z.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return (gradient * slope).to(ctx.dtype), None, None, None, None


Pull = Callable[[Tensor], Tensor]
"""Maps the gradient with respect to the output of an operation to that with respect to its input."""


def _draw_for_batch(
    leaves: Tensor, others: int, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return one draw of count + 1 leaves, and which place (B,) of these each image excludes.

    An image excludes its own leaf, or the last if its own was not drawn: it keeps `count` others, each set of others
    being equally likely.
    """
    drawn = _distinct(count + 1, others + 1, leaves.device, generator)
    places = torch.arange(count + 1, device=leaves.device)
    place_of = torch.full((others + 1,), count, device=leaves.device).scatter_(0, drawn, places)
    return drawn, place_of[leaves]


def _distinct(count: int, below: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw `count` different numbers below `below`, every ordered choice equally likely; all come in order."""
    if count == below:
        return torch.arange(below, device=device)
    if device.type == "cpu" and 4 * count <= below:
        # A permutation of all would take most of a small step's time: drop repeats from a draw of twice the length.
        draws = torch.randint(below, (2 * count + 16,), generator=generator)
        places = torch.arange(len(draws))
        first = torch.full((below,), len(draws)).scatter_reduce_(0, draws, places, "amin")
        kept = draws[first[draws] == places][:count]
        if len(kept) == count:  # almost always
            return kept
    return torch.randperm(below, device=device, generator=generator)[:count]


def _draw_per_image(leaves: Tensor, others: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Return (B, K): each image's own draw among the other leaves."""
    keys = torch.rand(len(leaves), others, device=leaves.device, generator=generator)
    drawn = keys.topk(count, dim=1, sorted=False).indices
    return drawn + (drawn >= leaves[:, None])


def _own_path(tree: PrototypeTree, leaves: Tensor) -> Tensor:
    """Return the prototypes (B, L, D) of the path of each image's leaf."""
    paths = tree.paths[leaves].unbind(1)
    return torch.stack([nodes.index_select(0, own) for nodes, own in zip(tree.prototypes, paths, strict=True)], dim=1)


def _cosines(unit: Tensor, prototypes: Tensor, nodes: Tensor) -> tuple[Tensor, Pull]:
    """Return the cosines (B, K) of unit vectors (B, D) and the prototypes at `nodes`: (K,), or (B, K) per image.

    Products are those with the drawn nodes or with all of a level, whichever are fewer.
    """
    if nodes.ndim == 1 and len(nodes) < len(prototypes):
        rows = prototypes.index_select(0, nodes).to(unit.dtype)
        return unit @ rows.T, lambda slope: slope @ rows
    rows, where = prototypes.to(unit.dtype), nodes.expand(len(unit), -1)

    def pull(slope: Tensor) -> Tensor:
        return slope.new_zeros(len(unit), len(rows)).scatter_add_(1, where, slope) @ rows

    return (unit @ rows.T).gather(1, where), pull


def _unit(z: Tensor) -> tuple[Tensor, Pull]:
    """Return z at length 1 along the last dimension, in float32 at least.

    Scaled by its largest value first, so that squares neither overflow nor vanish; a z too small to have a direction
    stays short, where F.normalize's gradient would overflow in half precision.
    """
    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    largest = wide.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(z.dtype).eps)
    wide = wide / largest
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    unit = wide / length.clamp(min=1)

    def pull(slope: Tensor) -> Tensor:
        along = (slope * unit).sum(-1, keepdim=True).masked_fill_(length < 1, 0)
        return slope.addcmul(along, unit, value=-1) / (length.clamp(min=1) * largest)

    return unit, pull


def _check(z: Tensor, tree: PrototypeTree, leaves: Tensor) -> None:
    if not isinstance(z, Tensor):
        raise ValueError(
            f"z is a {type(z).__name__}, but must be a float tensor of shape (B, {len(tree.levels)}, {tree.dim}): "
            "torch.stack(z, dim=1) joins one (B, D) per level"
        )
    if z.ndim != 3 or not z.is_floating_point() or z.shape[1:] != (len(tree.levels), tree.dim):
        raise ValueError(
            f"z must be a float tensor of shape (B, {len(tree.levels)}, {tree.dim}) for this tree, "
            f"not {z.dtype} {tuple(z.shape)}"
        )
    if len(z) == 0:
        raise ValueError("z holds no image: a loss needs a batch of at least 1")
    if leaves.shape != z.shape[:1] or leaves.dtype != torch.int64:
        raise ValueError(f"leaves must be int64 of shape ({len(z)},) as z, not {leaves.dtype} {tuple(leaves.shape)}")
    # Not on a GPU, where reading the values would make every step wait.
    if leaves.device.type == "cpu" and not 0 <= int(leaves.min()) <= int(leaves.max()) < tree.levels[0]:
        raise ValueError(f"leaves must lie in 0 … {tree.levels[0] - 1}, not {int(leaves.min())} … {int(leaves.max())}")


def check_sampling(negatives: int | None, sampling: str) -> None:
    if negatives is not None and negatives < 1:
        raise ValueError(f"negatives is {negatives}, but must be at least 1, or None for all")
    if sampling not in get_args(Sampling):
        raise ValueError(f"sampling is {sampling!r}, but must be one of {', '.join(get_args(Sampling))}")
