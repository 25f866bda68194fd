"""One process of a gloo group, run by test_processes.py: fills its part of a bank and builds trees from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hirl import SemanticPaths
from hirl.data.views.draws import permutation
from hirl.ranks import Ranks
from hirl.train.bank import Bank

N, BATCH, DIM, EPOCHS, FIRST_TREE = 103, 24, 8, 5, 2
UNREADABLE, STAND_IN = 7, 8  # the epochs show the stand-in twice, often on two processes


def z0(index: Tensor, step: int) -> Tensor:
    """Features of images at a step: a function of both, whichever process computes it."""
    images = torch.randn(N, DIM, generator=torch.Generator().manual_seed(0))
    return images[index] + 0.2 * torch.randn(N, DIM, generator=torch.Generator().manual_seed(100 + step))[index]


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    ranks = Ranks(dist.group.WORLD)
    bank, paths, step = Bank(N, DIM, momentum=0.5), SemanticPaths(DIM, (10, 3)), 0
    found: dict[str, Any] = {"trees": [], "owned": []}
    for epoch in range(EPOCHS):
        if epoch >= FIRST_TREE:
            if bank.missing(ranks):
                share = torch.arange(rank, N, world)
                share = share[share != UNREADABLE]
                bank.replace(share, z0(share, step), step, ranks)
            index, features = bank.clustering_features(ranks)
            found["owned"].append(index)
            tree = paths.refresh(features, index=index, images=N, group=ranks.group)
            found["trees"].append(tree.tensors())
        order = permutation(0, epoch, N)
        for start in range(0, N - BATCH + 1, BATCH):  # the last images of each order are left out
            index = torch.from_numpy(np.array_split(order[start : start + BATCH], world)[rank])
            index = torch.where(index == UNREADABLE, STAND_IN, index)
            bank.collect(index, z0(index, step), step + 1)
            step += 1
    found["state"] = bank.state_dict(ranks)
    expected = F.normalize(found["state"]["features"].float(), dim=1)
    found["unit"] = bool((expected - found["state"]["features"].float()).abs().max() < 1e-3)
    other = Bank(N, DIM)
    other.load_state_dict(found["state"], ranks)
    found["continued"] = other.state_dict(ranks)
    torch.save(found, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
