"""Partners of each image: its nearest images in the features of the start, whose views serve as positives.

Nearest neighbours as positives are NNCLR's idea (Dwibedi et al., 2021, arXiv:2104.14548). Here they come from the
frozen encoder, and with HIRL they must share a node of the tree: an image in another node is never a partner.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.neighbours import nearest_rows

PARTNERS = 20  # per image, at most
CONSIDERED = 100  # nearest images that are searched for those in the same node


def partner_nodes(tree: PrototypeTree) -> Tensor:
    """(N,) per image, the node its partners must share, −1 for none: one level above the leaves if there is one.

    Within a leaf, which is small, partners would be few and the same as without a tree.
    """
    return tree.image_paths[:, min(1, len(tree.levels) - 1)].cpu()


def find_partners(features: Tensor, nodes: Tensor | None = None, *, device: torch.device | None = None) -> Tensor:
    """(N, k): the images nearest to each by their features (N, width), the nearest first, padded with −1.

    `nodes` (N,): the node of each image in the tree, or −1; partners must share it. `device`: where to compare.
    """
    N = len(features)
    found = torch.full((N, min(PARTNERS, N - 1)), -1)
    for some in nearest_rows(features, features, min(N, CONSIDERED + 1), device=device):
        own, rows = torch.arange(N)[some.queries], some.rows.cpu()
        fits = rows != own[:, None]
        if nodes is not None:
            fits &= (nodes[rows] == nodes[own][:, None]) & (nodes[own] >= 0)[:, None]
        order = (~fits).long().argsort(dim=1, stable=True)  # those in the same node first, nearest first
        rows = torch.where(fits, rows, -1).gather(1, order)[:, : found.shape[1]]
        found[some.queries, : rows.shape[1]] = rows
    return found
