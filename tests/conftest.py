"""What several tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import PrototypeTree


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def random_tree() -> Callable[..., PrototypeTree]:
    """Makes a tree of random prototypes and parents."""

    def make(levels: tuple[int, ...], dim: int, *, images: int = 20, seed: int = 0) -> PrototypeTree:
        generator = torch.Generator().manual_seed(seed)

        def ids(below: int, count: int) -> Tensor:
            return torch.randint(below, (count,), generator=generator)

        return PrototypeTree(
            prototypes=tuple(F.normalize(torch.randn(size, dim, generator=generator), dim=1) for size in levels),
            parents=tuple(ids(levels[level + 1], levels[level]) for level in range(len(levels) - 1)),
            leaves=ids(levels[0], images),
        )

    return make
