"""Partners of each image: others so near to it in the start's features that their views may pass for its own.

Nearest neighbours as positives are NNCLR's idea (Dwibedi et al., 2021, arXiv:2104.14548). Here they come from the
frozen encoder, and with HIRL the tree has a say: an image in another node is no partner, however near it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.neighbours import nearest_rows

PARTNERS = 20  # most per image
CONSIDERED = 100  # nearest images, among which those of the own node are looked for


def partner_nodes(tree: PrototypeTree) -> Tensor:
    """(N,) the node of each image, −1 for none, that its partners share: one level above the leaves if there is one.

    Leaves are small: within them, partners would be few, and the same as without a tree.
    """
    return tree.image_paths[:, min(1, len(tree.levels) - 1)].cpu()


def find_partners(features: Tensor, nodes: Tensor | None = None) -> Tensor:
    """(N, k): the images nearest to each by their features (N, width), the nearest first; −1 where there are no more.

    `nodes` (N,): the node of each image in the tree, or −1; partners have the same one.
    """
    N = len(features)
    found = torch.full((N, min(PARTNERS, N - 1)), -1)
    for some in nearest_rows(features, features, min(N, CONSIDERED + 1)):
        own = torch.arange(N)[some.queries]
        rows = some.rows.cpu()
        fits = rows != own[:, None]
        if nodes is not None:
            fits &= (nodes[rows] == nodes[own][:, None]) & (nodes[own] >= 0)[:, None]
        order = (~fits).long().argsort(dim=1, stable=True)  # those that fit first, in their order
        rows = torch.where(fits, rows, -1).gather(1, order)[:, : found.shape[1]]
        found[some.queries, : rows.shape[1]] = rows
    return found
