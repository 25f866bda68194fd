"""Diagnostics of HIRL: the gradient norms of both losses at z⁰, their cosine, and how stable leaves are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hirl.data.loader import EvaluationLoader
from hirl.features.forward_pass import collected_outputs
from hirl.features.view_cache import CachedFeatureLoader
from hirl.hierarchy.rows import UnitRows
from hirl.hierarchy.tree import NO_LEAF, PrototypeTree
from hirl.methods.base import Method
from hirl.ranks import Ranks
from hirl.runs import metrics

COMPARED = 512  # images per tree, at most, whose leaf from the bank is compared with that of the clean image
# Autograd nodes that may lie between the network's output for all views and z⁰ of the first: slices and casts.
PARTS = ("Slice", "Split", "UnsafeSplit", "Select", "Unbind", "ToCopy", "Alias", "View")


def gradient_figures(loss_image: Tensor, loss_spd: Tensor, z0: Tensor) -> dict[str, Tensor]:
    """Return the norms of both losses' gradients at z⁰ (B, D) and their cosine; {} if L_img does not depend on z⁰.

    Only the part of the graph between z⁰ and the losses is traversed; it is kept for the backward pass. If L_img is
    computed from a larger tensor, of all views, z⁰ is taken to be its first rows.
    """
    edge = get_gradient_edge(z0)
    image = _gradient(loss_image, edge)
    while image is None:  # the method's loss is computed from a tensor that z⁰ is a part of
        above, number = edge.node.next_functions[0]
        if not edge.node.name().startswith(PARTS) or above is None:
            return {}
        edge = GradientEdge(above, number)
        image = _gradient(loss_image, edge)
    spd = _gradient(loss_spd, edge)
    if spd is None:
        return {}
    image, spd = image.float()[: len(z0)].flatten(), spd.float()[: len(z0)].flatten()
    return {
        metrics.GRADIENT_IMAGE.name: image.norm(),
        metrics.GRADIENT_SPD.name: spd.norm(),
        metrics.GRADIENT_COSINE.name: torch.cosine_similarity(image, spd, dim=0),
    }


def _gradient(loss: Tensor, edge: GradientEdge) -> Tensor | None:
    (found,) = torch.autograd.grad(loss, [edge], retain_graph=True, allow_unused=True)
    return found


def view_agreement(tree: PrototypeTree, z0: Tensor, target_z0: Tensor) -> dict[str, Tensor]:
    """Return the share of images whose two views, z⁰ (B, D) each, have the same leaf and the same coarsest node."""
    # Not `assign`, which raises an error for a zero row: the check for finite losses reports such rows.
    leaves = (tree.assign_rows(UnitRows(rows)) for rows in (z0.detach(), target_z0))
    first, second = (tree.paths[found] for found in leaves)
    same = first == second
    return {
        metrics.VIEW_AGREEMENT.name: same[:, 0].float().mean(),
        metrics.VIEW_AGREEMENT_COARSEST.name: same[:, -1].float().mean(),
    }


def bank_agreement(
    tree: PrototypeTree, method: Method, images: EvaluationLoader | CachedFeatureLoader, ranks: Ranks
) -> dict[str, float]:
    """Return the share of some images whose leaf, and whose coarsest node, is also that of their clean z⁰.

    The tree was built from the bank, which holds z⁰ of augmented views by the encoder of earlier steps.
    """
    N = len(tree.leaves)
    count = min(COMPARED, max(32, N // 8), N)  # at most an eighth of a pass
    chosen = np.linspace(0, N - 1, count).round().astype(np.int64)
    mine = images.batches(chosen[ranks.rank :: ranks.size])
    index, z0 = collected_outputs(method, mine, apply=method.embed, width=method.dim)
    stored = tree.image_paths[index.to(tree.device)]  # (n, L)
    same = stored == tree.path(tree.assign(z0).to(tree.device))
    inside = stored[:, 0] != NO_LEAF
    counts = torch.stack((same[inside, 0].sum(), same[inside, -1].sum(), inside.sum()))
    leaf, coarsest, compared = ranks.sum(counts).tolist()
    return {
        metrics.BANK_AGREEMENT.name: leaf / max(1, compared),
        metrics.BANK_AGREEMENT_COARSEST.name: coarsest / max(1, compared),
    }
