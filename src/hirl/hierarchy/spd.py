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
        drawn, excluded = _draw_per_image(leaves, others, count, generator)  # (B, 1 + K)
    else:
        drawn, excluded = _draw_for_batch(leaves, others, count, generator)  # (B + K + 1,)
    with torch.autocast(z.device.type, enabled=False):
        loss: Tensor = _PathDiscrimination.apply(z, tree, drawn, excluded, count)
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
        terms = []
        for level, nodes in enumerate(tree.prototypes):
            unit = F.normalize(z[:, level].to(torch.promote_types(z.dtype, torch.float32)), dim=1)
            terms.append(F.cross_entropy(unit @ nodes.to(unit.dtype).T / temperature, paths[:, level]))
    return torch.stack(terms).mean()


class _PathDiscrimination(torch.autograd.Function):
    """Eq. 2–3 with an explicit gradient: a third of the operations that autograd would need."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, tree: PrototypeTree, drawn: Tensor, excluded: Tensor | None, count: int) -> Tensor:
        unit, pull_to_z = _unit(z)  # (B, L, D)
        paths = tree.paths[drawn]  # (…, L)
        pairs = [_cosines(unit[:, level], nodes, paths[..., level]) for level, nodes in enumerate(tree.prototypes)]
        cosines = torch.stack([cosine for cosine, _ in pairs])  # (L, B, leaves)
        eps = torch.finfo(cosines.dtype).eps
        halves = (cosines * 0.5).add_(0.5)  # (1 + cos)/2, of which rounding leaves a few outside 0 … 1
        inside = halves.clamp(eps, 1)
        log_s = inside.log().sum(0)  # Eq. 2, (B, leaves)

        # log(1 − s) is log(−expm1(log s)): exact for s near 0 and near 1, finite where s rounds to 1.
        rest = log_s.clamp(max=-eps).expm1_().neg_()  # 1 − s
        terms = rest.log().div_(max(count, 1))
        # −d log(1 − s) / d log s is s / (1 − s)
        slope = (1 - rest).div_(rest).div_(max(count, 1)).masked_fill_(log_s > -eps, 0)
        B = len(z)
        if excluded is None:  # the own leaf comes first
            terms[:, 0], slope[:, 0] = log_s[:, 0], -1
        else:  # the own leaves of all images come first: each image uses its own
            own = torch.eye(B, device=z.device, dtype=slope.dtype)
            terms[:, :B] = own * log_s[:, :B]
            slope[:, :B] = -own
            terms[:, B:].masked_fill_(excluded, 0)
            slope[:, B:].masked_fill_(excluded, 0)
        loss = terms.sum() / -B  # Eq. 3
        if ctx.needs_input_grad[0]:
            slopes = (slope * (0.5 / B) / inside).masked_fill_(inside != halves, 0)  # by cos, (L, B, leaves)
            pulls = [pull(part) for (_, pull), part in zip(pairs, slopes, strict=True)]
            # Not in z's type before the loss's own gradient, which includes a gradient scaler's factor, is known.
            ctx.save_for_backward(pull_to_z(torch.stack(pulls, dim=1)))
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
    """Return the images' own leaves followed by one draw of count + 1 leaves, and which of these each image excludes.

    An image excludes its own leaf, or the last if its own was not drawn: it keeps `count` others, each set of others
    being equally likely.
    """
    drawn = _distinct(count + 1, others + 1, leaves.device, generator)
    excluded = drawn == leaves[:, None]  # (B, K + 1)
    excluded[:, -1] |= ~excluded.any(1)
    return torch.cat((leaves, drawn)), excluded


def _distinct(count: int, below: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw `count` different numbers below `below`, every ordered choice equally likely; all come in order."""
    if count == below:
        return torch.arange(below, device=device)
    if device.type == "cpu" and 4 * count <= below:
        # A permutation of all would take most of a small step's time: drop repeats from a draw of twice the length.
        draws = torch.randint(below, (2 * count + 16,), generator=generator)
        ordered, places = draws.sort(stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=first[1:])
        kept = places[first].sort().values[:count]
        if len(kept) == count:  # almost always
            return draws[kept]
    return torch.randperm(below, device=device, generator=generator)[:count]


def _draw_per_image(leaves: Tensor, others: int, count: int, generator: torch.Generator | None) -> tuple[Tensor, None]:
    """Return (B, 1 + K): each image's own leaf, then a draw of its own among the others."""
    keys = torch.rand(len(leaves), others, device=leaves.device, generator=generator)
    drawn = keys.topk(count, dim=1, sorted=False).indices
    return torch.cat((leaves[:, None], drawn + (drawn >= leaves[:, None])), dim=1), None


def _cosines(z: Tensor, prototypes: Tensor, nodes: Tensor) -> tuple[Tensor, Pull]:
    """Return cosines of unit z (B, D) with the prototypes at `nodes`: (K,), or (B, K) for different nodes per image."""
    if nodes.ndim == 1 and len(nodes) < len(prototypes):
        rows = prototypes.index_select(0, nodes).to(z.dtype)
        return z @ rows.T, lambda slope: slope @ rows
    rows = prototypes.to(z.dtype)
    every = z @ rows.T  # (B, M)
    where = nodes.expand(len(z), -1)

    def pull(slope: Tensor) -> Tensor:
        return slope.new_zeros(every.shape).scatter_add_(1, where, slope) @ rows

    return every.gather(1, where), pull


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
