"""Semantic path discrimination, forward and backward, against the direct form that gathers every negative path."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.measure import peak_mebibytes, seconds
from hirl import PrototypeTree, spd_loss

LEVELS = (30000, 10000, 1000)
B = 32
CASES = {(128, 1000): 25, (256, 100): 5, (2048, 1000): 80}  # (D, negatives): the smallest ratio to expect


def direct_loss(z: Tensor, tree: PrototypeTree, leaves: Tensor, negatives: int) -> Tensor:
    """Compute Eq. 2 and 3 literally: gather, normalise and multiply (B, negatives, L, D) prototypes."""
    drawn = torch.randint(tree.levels[0] - 1, (len(z), negatives))
    drawn += drawn >= leaves[:, None]  # (B, K), never the own leaf
    z = F.normalize(z, dim=-1)

    def similarity(paths: Tensor, z: Tensor) -> Tensor:
        prototypes = torch.stack([nodes[paths[..., level]] for level, nodes in enumerate(tree.prototypes)], dim=-2)
        return ((1 + (z * F.normalize(prototypes, dim=-1)).sum(-1)) / 2).prod(-1)

    positive = similarity(tree.path(leaves), z)  # (B,)
    negative = similarity(tree.path(drawn), z[:, None])  # (B, K)
    return -(positive.log() + (1 - negative).log().mean(1)).mean()


def prepared(form: str, D: int, negatives: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    tree = PrototypeTree(
        prototypes=tuple(F.normalize(torch.randn(size, D, generator=generator), dim=1) for size in LEVELS),
        parents=tuple(torch.randint(LEVELS[level + 1], (LEVELS[level],), generator=generator) for level in range(2)),
        leaves=torch.zeros(1, dtype=torch.int64),
    )
    z = torch.randn(B, len(LEVELS), D, generator=generator, requires_grad=True)
    leaves = torch.randint(LEVELS[0], (B,), generator=generator)
    _ = tree.paths  # computed once per tree, not once per step

    def step() -> None:
        z.grad = None
        if form == "direct":
            direct_loss(z, tree, leaves, negatives).backward()
        else:
            spd_loss(z, tree, leaves, negatives=negatives, sampling=form).backward()  # type: ignore[arg-type]

    return step


def main() -> None:
    table = Table(title=f"SPD forward + backward, B={B}, levels {LEVELS}", title_justify="left")
    for heading in ("D", "negatives", "form", "ms", "direct / this", "expected", "peak MiB"):
        table.add_column(heading, justify="right")
    for (D, negatives), expected in CASES.items():
        times = {form: seconds(prepared(form, D, negatives), repeats=10) for form in ("batch", "image", "direct")}
        for form, taken in times.items():
            memory = peak_mebibytes(prepared, form, D, negatives)
            ratio, aim = f"{times['direct'] / taken:.1f}×", f"{expected}×" if form == "batch" else ""
            table.add_row(str(D), str(negatives), form, f"{taken * 1e3:.2f}", ratio, aim, f"{memory:.0f}")
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
