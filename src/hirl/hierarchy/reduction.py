"""Optional map before clustering: centring, principal components, partial whitening."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hirl.hierarchy.rows import SHORTEST, UnitRows, accumulator
from hirl.ranks import Ranks

# Components with a smaller share of the largest variance are rounding errors, which whitening would magnify.
LEAST_VARIANCE = 1e-7


@dataclass(frozen=True, eq=False)
class ReducedSpace:
    """The map of unit rows (n, D) to (x − mean) · axes (n, d), and a tree's prototypes there.

    `mean` (D,), `axes` (D, d), `prototypes[l]` (M_l, d) of unit length; without prototypes, a map alone.
    """

    mean: Tensor
    axes: Tensor
    prototypes: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        D, d = (*self.axes.shape, 0, 0)[:2]
        if self.axes.ndim != 2 or self.mean.shape != (D,) or any(nodes.shape[1:] != (d,) for nodes in self.prototypes):
            shapes = ", ".join(str(tuple(nodes.shape)) for nodes in self.prototypes)
            raise ValueError(
                f"a reduced space needs a mean (D,), axes (D, d) and prototypes (M, d), not {tuple(self.mean.shape)}, "
                f"{tuple(self.axes.shape)} and {shapes or 'none'}"
            )

    def project(self, rows: UnitRows) -> UnitRows:
        """Return the rows in the reduced space, which are held in memory: d numbers per row."""
        mean, axes = self.mean.to(rows.device).float(), self.axes.to(rows.device).float()
        reduced = torch.empty(len(rows), axes.shape[1], device=rows.device)
        for chunk in rows.chunks(rows.dim):
            reduced[chunk] = (rows[chunk] - mean) @ axes
        # A row that equals the mean has no direction: it gets that of the first component.
        lost = ~(torch.linalg.vector_norm(reduced, dim=1) >= SHORTEST)
        reduced[lost, 0] = 1.0
        return UnitRows(reduced, name=rows.name)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "axes": self.axes} | {f"prototypes.{i}": p for i, p in enumerate(self.prototypes)}

    @classmethod
    def from_tensors(cls, named: dict[str, Tensor], levels: int) -> ReducedSpace:
        expected = {"mean", "axes"} | {f"prototypes.{level}" for level in range(levels)}
        if set(named) != expected:
            raise ValueError(f"expected the tensors {sorted(expected)} of a reduced space, found {sorted(named)}")
        return cls(named["mean"], named["axes"], tuple(named[f"prototypes.{level}"] for level in range(levels)))


def fit_reduction(rows: UnitRows, ranks: Ranks, *, centre: bool, components: int | None, whiten: float) -> ReducedSpace:
    """Find the principal components of all ranks' rows, of which only the sums and products of columns are sent."""
    moments = torch.zeros(rows.dim + 1, rows.dim + 1, dtype=accumulator(rows.device), device=rows.device)
    for chunk in rows.chunks(rows.dim + 1):
        some = rows[chunk].to(moments.dtype)
        some = torch.cat((some, some.new_ones(len(some), 1)), dim=1)
        moments += some.T @ some
    moments = ranks.sum(moments).double().cpu()
    moments /= moments[-1, -1].clone()
    mean = moments[-1, :-1] if centre else torch.zeros(rows.dim, dtype=moments.dtype)
    products = moments[:-1, :-1]
    variance, axes = torch.linalg.eigh(products - mean[:, None] * mean if centre else products)
    variance, axes = variance.flip(0), axes.flip(1)  # largest first
    kept = int((variance > LEAST_VARIANCE * variance[0].clamp(min=LEAST_VARIANCE)).sum())
    kept = max(1, min(kept, rows.dim if components is None else components))
    variance, axes = variance[:kept], axes[:, :kept]
    # An axis has no sign of its own: its largest entry is positive, on every machine.
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    axes = axes * variance.clamp(min=variance[0] * LEAST_VARIANCE + SHORTEST) ** (-whiten / 2)
    return ReducedSpace(
        ranks.broadcast(mean.float().to(rows.device)), ranks.broadcast(axes.float().contiguous().to(rows.device))
    )
