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
        unit, pull_to_z = _unit(z)  # (B, L, D)
        B, negatives = len(z), max(drawn.shape[-1] - (excluded is not None), 1)
        own = torch.stack([nodes[tree.paths[leaves, level]] for level, nodes in enumerate(tree.prototypes)], dim=1)
        own = own.to(unit.dtype)  # (B, L, D)
        own_half, own_inside = _halves((unit * own).sum(2).mul_(0.5))  # (B, L)
        paths = tree.paths[drawn]  # (…, L)
        pairs = [
            _log_halves(unit[:, level] * 0.5, nodes, paths[..., level]) for level, nodes in enumerate(tree.prototypes)
        ]
        log_s = torch.stack([logs for logs, _ in pairs]).sum(0)  # Eq. 2, (B, leaves)

        # log(1 − s) is log(−expm1(log s)): exact for s near 0 and near 1, finite where s rounds to 1.
        eps = torch.finfo(log_s.dtype).eps
        rest = log_s.clamp(max=-eps).expm1_().neg_()  # 1 − s
        terms = rest.log()
        if excluded is not None:
            terms.masked_fill_(excluded, 0)
        loss = (own_inside.log().sum() + terms.sum() / negatives) / -B  # Eq. 3
        if ctx.needs_input_grad[0]:
            # −d log(1 − s) / d log s is s / (1 − s)
            slope = (1 - rest).div_(rest).mul_(0.5 / (B * negatives)).masked_fill_(log_s > -eps, 0)
            if excluded is not None:
                slope.masked_fill_(excluded, 0)
            own_slope = (-0.5 / B / own_inside).masked_fill_(own_inside != own_half, 0)  # (B, L)
            pulls = torch.stack([pull(slope) for _, pull in pairs], dim=1)
            # Not in z's type before the loss's own gradient, which includes a gradient scaler's factor, is known.
            ctx.save_for_backward(pull_to_z(pulls.addcmul_(own_slope[..., None], own)))
            ctx.dtype = z.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return (gradient * slope).to(ctx.dtype), None, None, None, None


Pull = Callable[[Tensor], Tensor]
"""Maps the gradient with respect to the output of an operation to that with respect to its input."""


def _halves(half_cosines: Tensor) -> tuple[Tensor, Tensor]:
    """Return (1 + cos) / 2 and, since rounding leaves a few outside, the same inside 0 … 1."""
    halves = half_cosines.add_(0.5)
    return halves, halves.clamp(torch.finfo(halves.dtype).eps, 1)


def _draw_for_batch(
    leaves: Tensor, others: int, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return one draw of count + 1 leaves, and which of these each image excludes.

    An image excludes its own leaf, or the last if its own was not drawn: it keeps `count` others, each set of others
    being equally likely.
    """
    drawn = _distinct(count + 1, others + 1, leaves.device, generator)
    excluded = drawn == leaves[:, None]  # (B, K + 1)
    excluded[:, -1] |= ~excluded.any(1)
    return drawn, excluded


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


def _draw_per_image(leaves: Tensor, others: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Return (B, K): each image's own draw among the other leaves."""
    keys = torch.rand(len(leaves), others, device=leaves.device, generator=generator)
    drawn = keys.topk(count, dim=1, sorted=False).indices
    return drawn + (drawn >= leaves[:, None])


def _log_halves(z: Tensor, prototypes: Tensor, nodes: Tensor) -> tuple[Tensor, Pull]:
    """Return log (1 + cos) / 2 of half unit vectors z (B, D) and the prototypes at `nodes`: (K,), or (B, K) per image.

    The pull, from half the slope, is that of the unit vectors. What there is less of is computed: the nodes of a coarse
    level are fewer than the leaves above them.
    """
    few, alike = nodes.shape[-1] < len(prototypes), nodes.ndim == 1
    rows = (prototypes.index_select(0, nodes) if few and alike else prototypes).to(z.dtype)
    where = nodes.expand(len(z), -1)
    products = z @ rows.T
    halves, inside = _halves(products.gather(1, where) if few and not alike else products)
    logs = inside.log()

    def spread(slope: Tensor) -> Tensor:
        return slope.new_zeros(len(z), len(prototypes)).scatter_add_(1, where, slope)

    def pull(slope: Tensor) -> Tensor:
        slope = ((slope if few else spread(slope)) / inside).masked_fill_(inside != halves, 0)
        return (spread(slope) if few and not alike else slope) @ rows

    return logs if few else logs.gather(1, where), pull


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
