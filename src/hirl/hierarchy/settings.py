"""Settings of HIRL. `hierarchy=None` in their place is the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.levels import check_levels, suggest_levels


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """HIRL on top of a method.

    Args:
        levels: Prototypes per level, fine to coarse; by default fitted to the number of images.
        negatives: Negative paths per image; null for all.
        start_epoch: T₁, the first epoch with a tree, counted from 0; by default after a tenth of the epochs.
        head_layers: Linear layers per head h_l.
        weight: Factor on L_SPD; 1 as in Eq. 4.
        features: What is clustered: "bank" is z⁰ of each image from the last epoch of training; "pass" embeds all
            images again, as the paper does.
        assign: Where an image's leaf comes from: "stored" is its leaf of the last clustering; "step" finds the leaf
            nearest to its second global view at every step, as SwAV needs it.
        builder: Clusters the features into a tree.
    """

    levels: tuple[int, ...] | None = None
    negatives: int | None = 1000
    start_epoch: int | None = None
    head_layers: int = 2
    weight: float = 1.0
    features: Literal["bank", "pass"] = "bank"
    assign: Literal["stored", "step"] = "stored"
    builder: TreeBuilder = HierarchicalKMeans()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if self.levels is not None:
            object.__setattr__(self, "levels", check_levels(tuple(self.levels)))
        if self.start_epoch is not None and self.start_epoch < 1:
            raise ValueError(f"hierarchy.start_epoch must be at least 1, not {self.start_epoch}: a tree needs features")

    def levels_for(self, N: int) -> tuple[int, ...]:
        """Return the levels for N images: the given ones, if they fit, or suggested ones."""
        return check_levels(self.levels, N) if self.levels is not None else tuple(suggest_levels(N))

    def start_for(self, epochs: int) -> int:
        """Return T₁ for a run of `epochs` epochs."""
        return max(1, epochs // 10) if self.start_epoch is None else self.start_epoch
