"""Inputs, results and errors of K-means on one level."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hirl.hierarchy.draws import EQUAL_DISTANCE


@dataclass(frozen=True)
class Prototypes:
    """Prototypes (M, D), and for a level inside another one the node (M,) of that level that each lies in."""

    rows: Tensor
    parents: Tensor | None = None

    def first(self) -> Prototypes:
        return Prototypes(self.rows[:1], None if self.parents is None else self.parents[:1])

    def concatenate(self, *others: Prototypes) -> Prototypes:
        parts = (self, *others)
        parents = [part.parents for part in parts if part.parents is not None]
        return Prototypes(torch.cat([part.rows for part in parts]), torch.cat(parents) if parents else None)


@dataclass(frozen=True)
class Clusters:
    """The result for one level."""

    prototypes: Prototypes
    index: Tensor  # (n,) the prototype of each of this rank's rows
    counts: Tensor  # (M,) the rows of each prototype, over all ranks; weighted if the rows are
    distance: float  # squared, summed over the rows of all ranks

    def compact_index(self) -> tuple[Tensor, Tensor]:
        """Return the indices (m,) of non-empty prototypes, and each row's (n,) place among them."""
        some = self.counts > 0
        return some.nonzero().flatten(), (some.cumsum(0) - 1)[self.index]


class TooFewDirections(ValueError):  # noqa: N818
    """Rows that cannot be told apart well enough for the clusters that are asked for."""

    def __init__(self, name: str, different: int, N: int, clusters: int) -> None:
        self.different = different
        fault = f"{name} hold only {different} different directions ({EQUAL_DISTANCE**0.5:g} or more apart) in {N} rows"
        super().__init__(
            f"{fault}, too few for {clusters} clusters: use fewer clusters, or check for repeated rows and for collapse"
        )
