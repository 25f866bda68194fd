"""The leaf of every image of the data set, from the leaves of rows in any order on any rank."""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.ranks import Ranks


def leaves_by_index(leaves: Tensor, index: Tensor | None, images: int | None, ranks: Ranks) -> Tensor:
    """Return the leaf of every image of the data set, from the leaves of each rank's rows and their positions in it."""
    if images is not None and index is None:
        raise ValueError("images needs index: the position in the data set of each row")
    gathered = ranks.gather_objects((len(leaves), -1 if index is None or not len(index) else int(index.max())))
    if index is None:
        offset = sum(count for count, _ in gathered[: ranks.rank])
        index = torch.arange(offset, offset + len(leaves))
        N = sum(count for count, _ in gathered)
    else:
        N = 1 + max(last for _, last in gathered)
        if images is not None and images < N:
            raise ValueError(f"index reaches {N - 1}, but there are {images} images, counted from 0")
        N = N if images is None else images
    # One message of 4 bytes per image: a rank writes leaf + 1 at its own images and 0 elsewhere.
    table = torch.zeros(N, dtype=torch.int32, device=leaves.device)
    table[index.to(leaves.device)] = leaves.int() + 1
    table = ranks.max(table)
    if images is None and (table == 0).any():
        raise ValueError(f"index leaves out image {int((table == 0).nonzero()[0])} of {N}: every image needs a row")
    return table.long() - 1  # an image without a row: NO_LEAF
