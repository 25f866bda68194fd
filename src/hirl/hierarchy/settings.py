"""What HIRL is told: levels, negatives, when it begins. None instead of it is the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.levels import check_levels, suggest_levels


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """HIRL on top of a method.

    Args:
        levels: Prototypes a level, fine to coarse; by default what suits the number of images.
        negatives: Negative paths an image; null for all.
        start_epoch: T₁, the first epoch with a tree, counted from 0; by default after a tenth of the epochs.
        head_layers: Linear layers in each head h_l.
        weight: Of L_SPD; 1 as in Eq. 4.
        features: "bank" clusters the z⁰ that training itself gave in the last epoch; "pass" embeds all images anew, as
            the paper does.
        assign: "stored" takes each image's leaf from the last clustering; "step" finds it anew at every step from the
            second global view (SwAV's way).
        builder: Builds the tree from the features.
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
        """The levels for N images: those asked for, if they fit, or what suits N."""
        return check_levels(self.levels, N) if self.levels is not None else tuple(suggest_levels(N))

    def start_for(self, epochs: int) -> int:
        """T₁ for a run of so many epochs."""
        return max(1, epochs // 10) if self.start_epoch is None else self.start_epoch
