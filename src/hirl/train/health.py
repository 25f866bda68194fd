"""Figures of the representations and of successive trees, and checks for collapse: warnings that name a remedy.

Thresholds, and why:

- feature std: unit vectors spread evenly over a sphere have a standard deviation of 1/√D per dimension. Healthy runs
  stay above half of that; below a tenth, all images have nearly the same representation.
- effective rank: the exponential of the entropy of the covariance's spectrum, at most D. Below 2, all images lie on a
  line.
- assignment entropy: of the leaves' sizes, relative to its maximum log M₁. Below a half, few leaves hold nearly all
  images.
- giant node: a node with more than half of all images is uninformative, unless its level has so few nodes that one
  must be that large.
- one-image and empty leaves: more than half of the leaves hold at most one image. With fewer than three images per
  leaf there are too many leaves; with more, the other leaves hold nearly all images, which are nearly the same.
- loss ≈ ln K: the loss of a method that spreads all images evenly over its K outputs whatever they show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.hierarchy.tree import NO_LEAF, PrototypeTree
from hirl.metrics.agreement import purity
from hirl.runs import metrics

LOW_STD, LOW_RANK, LOW_ENTROPY, GIANT_NODE, SMALL_LEAVES, NEAR_LN_K = 0.1, 2.0, 0.5, 0.5, 0.5, 0.01
FEW_PER_LEAF = 3


@dataclass(frozen=True)
class Health:
    """Figures to log, and warnings to show."""

    figures: dict[str, float]
    warnings: list[str]


def check_representations(batches: Sequence[Tensor]) -> Health:
    """Check z⁰ of some batches of an epoch, each (B, D).

    Images are compared within their batch: after batch norm all images of a batch may have the same representation and
    still differ from batch to batch.
    """
    if all(len(z0) == 1 for z0 in batches):
        batches = [torch.cat(list(batches))]
    units = [F.normalize(z0.float(), dim=1) for z0 in batches]
    centred = torch.cat([batch - batch.mean(0) for batch in units])  # (n, D)
    n, dim = centred.shape
    spread = float((centred.square().sum(0) / max(1, n - len(batches))).sqrt().mean()) * math.sqrt(dim)
    spectrum = torch.linalg.svdvals(centred).square()
    shares = spectrum / spectrum.sum().clamp(min=1e-12)
    rank = float(torch.exp(-(shares * shares.clamp(min=1e-12).log()).sum()))
    warnings = []
    if spread < LOW_STD:
        warnings.append(
            f"the representations have nearly collapsed: their standard deviation is {spread:.3f} of that of evenly "
            "spread ones; lower the learning rate, lengthen the warm-up or use a larger batch"
        )
    elif rank < LOW_RANK:
        warnings.append(
            f"the representations lie nearly on a line: their effective rank is {rank:.1f} of {dim}; lower the "
            "learning rate or strengthen the augmentation"
        )
    return Health({metrics.FEATURE_STD.name: spread, metrics.EFFECTIVE_RANK.name: rank}, warnings)


def check_tree(tree: PrototypeTree) -> Health:
    """Check the sizes of a new tree's nodes."""
    N = tree.count
    sizes = [tree.sizes(level).float() for level in range(len(tree.levels))]
    shares = sizes[0] / N
    entropy = float(-(shares * shares.clamp(min=1e-12).log()).sum()) / max(math.log(tree.levels[0]), 1e-12)
    largest = [float(size.max()) / N for size in sizes]
    one_image, empty = (float((sizes[0] == size).float().mean()) for size in (1, 0))
    warnings = []
    if entropy < LOW_ENTROPY:
        warnings.append(
            f"few leaves hold nearly all images (assignment entropy {entropy:.2f} of 1); the representations may be "
            "collapsing: start the hierarchy later or use fewer leaves"
        )
    for level, share in enumerate(largest):
        if share > GIANT_NODE and tree.levels[level] > 2:
            warnings.append(
                f"a node of level {level} holds {share:.0%} of all images; start the hierarchy later or use fewer "
                "nodes at that level"
            )
    if one_image + empty > SMALL_LEAVES:
        text, M = f"{one_image:.0%} of the leaves hold a single image", tree.levels[0]
        if empty:
            text = f"{text} and {empty:.0%} hold none" if one_image else f"{empty:.0%} of the leaves hold no image"
        if N < FEW_PER_LEAF * M:
            warnings.append(f"{text}; use fewer leaves than {M:,} for {N:,} images")
        else:
            rest = float((sizes[0] > 1).float().mean())
            warnings.append(
                f"{text}, and nearly all of the {N:,} images share the other {rest:.0%}: these images have nearly the "
                "same representation; check for duplicates (hirl duplicates), or start the hierarchy later"
            )
    figures = {
        metrics.ASSIGNMENT_ENTROPY.name: entropy,
        metrics.ONE_IMAGE_LEAVES.name: one_image,
        metrics.EMPTY_LEAVES.name: empty,
    }
    return Health(figures | {metrics.LARGEST_NODE.at(level): share for level, share in enumerate(largest)}, warnings)


class TreeFigures:
    """Figures of each new tree of a run, in order. `labels` (N,) are the images' classes, if they have any."""

    def __init__(self, labels: Tensor | None) -> None:
        self.labels = labels
        self._leaves: Tensor | None = None

    def measure(self, tree: PrototypeTree, *, anew: bool = False) -> dict[str, float]:
        """Return `moved_leaves` and, with labels, `purity_N` for each level N.

        moved_leaves: the share of images whose leaf differs from that in the previous tree. Clustering starts from that
        tree, so leaves keep their numbers, unless the tree was built `anew`. purity_N: the share of images that have
        the most frequent class of their node.
        """
        paths = tree.image_paths.cpu()
        leaves, present = paths[:, 0], paths[:, 0] != NO_LEAF
        figures: dict[str, float] = {}
        if not anew and self._leaves is not None and len(self._leaves) == len(leaves):
            moved = (leaves != self._leaves) & present
            figures[metrics.MOVED_LEAVES.name] = float(moved.sum()) / max(1, int(present.sum()))
        self._leaves = leaves
        if self.labels is not None and present.any():
            labels = self.labels[present]
            figures |= {metrics.PURITY.at(level): purity(nodes, labels) for level, nodes in enumerate(paths[present].T)}
        return figures


def check_loss(loss: float | None, outputs: int | None, remedy: str) -> list[str]:
    """Check whether a method's loss at the end of an epoch is ln(outputs), the loss of a uniform prediction.

    `remedy` is the method's own advice. A method without such a loss (None) is not checked.
    """
    if outputs is None or loss is None or abs(loss - math.log(outputs)) > NEAR_LN_K * math.log(outputs):
        return []
    return [f"the loss is {loss:.4f}, which is ln {outputs}: the method gives all images the same output; {remedy}"]
