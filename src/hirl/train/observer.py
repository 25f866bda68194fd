"""The interface that the loop reports to: one observer per process, silent on all but the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.tree import PrototypeTree

Rates: TypeAlias = "Mapping[str, float | Tensor]"  # tensors are on the device: reading one makes a GPU wait


class Observer:
    """Called by the loop. Epochs and steps count from 0; `step` is the number of steps done so far.

    This base class shows nothing.
    """

    def on_step(self, step: int, figures: Mapping[str, Tensor], rates: Rates, images: int, data_seconds: float) -> None:
        """After each step: its figures and learning rates, its images over all processes, the time spent on data."""

    def on_tree_start(self, epoch: int) -> TreeProgress | None:
        """Before a tree is built for an epoch. Return a callback for the builder's progress, or None."""

    def on_tree_built(
        self, epoch: int, seconds: dict[str, float], tree: PrototypeTree, agreement: dict[str, float]
    ) -> None:
        """After a tree was built, for an epoch or after the last epoch for the finished run.

        `seconds`: time of features, clustering and comparison, by metric. `agreement`: of the bank with clean images.
        """

    def on_tree_restored(self, tree: PrototypeTree) -> None:
        """After the tree of a checkpoint was restored, which was reported before."""

    def on_epoch_end(self, epoch: int, step: int, means: dict[str, float], sample: list[Tensor]) -> None:
        """After the last step of an epoch: the means of its steps' figures, and z⁰ of some of its batches (B, D)."""
