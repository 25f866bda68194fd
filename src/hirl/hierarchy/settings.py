"""Settings of HIRL. `hierarchy=None` in their place is the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.levels import check_levels, suggest_levels


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """HIRL on top of a method.

    Args:
        levels: Prototypes per level, fine to coarse; by default fitted to the number of images.
        negatives: Negative paths per image; null for all.
        start_epoch: T₁, the first epoch with a tree, counted from 0. By default half of the epochs if the method's
            arguments are chosen for the images, else, for a method with arguments or a recipe, a tenth of them.
        head_layers: Linear layers per head h_l.
        weight: Factor on L_SPD. By default, if the method's arguments are chosen for the images on a CPU, that of the
            method's recipe in small/; else 1, as in Eq. 4.
        features: What is clustered: "pass" embeds all images, unaugmented and in eval mode, as the paper does; "bank"
            saves that time and takes z⁰ of each image's second view from training, which is augmented, computed with
            batch norm in training mode and up to an epoch old. A finished run's tree is always that of a pass.
        bank_momentum: For features from the bank: the share of the earlier epochs in the mean of z⁰ over epochs that is
            clustered. It averages out the augmentations; 0 clusters z⁰ of the last epoch alone.
        assign: Where an image's leaf comes from: "stored" is its leaf of the last clustering; "step" finds the leaf
            of its second global view at every step. By default step for SwAV, as in the paper, else stored.
        builder: Clusters the features into a tree.
    """

    levels: tuple[int, ...] | None = None
    negatives: int | None = 1000
    start_epoch: int | None = None
    head_layers: int = 2
    weight: float | None = None
    features: Literal["bank", "pass"] = "bank"
    bank_momentum: float = 0.7
    assign: Literal["stored", "step"] | None = None
    builder: TreeBuilder = HierarchicalKMeans()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if self.levels is not None:
            object.__setattr__(self, "levels", check_levels(tuple(self.levels)))
        if self.start_epoch is not None and self.start_epoch < 1:
            raise ValueError(f"hierarchy.start_epoch must be at least 1, not {self.start_epoch}: a tree needs features")
        if self.weight is not None and not 0 <= self.weight < math.inf:
            raise ValueError(f"hierarchy.weight must be a number of at least 0, not {self.weight}")
        if self.negatives is not None and self.negatives < 1:
            raise ValueError(f"hierarchy.negatives must be at least 1, or null for all, not {self.negatives}")
        if not 0 <= self.bank_momentum < 1:
            raise ValueError(f"hierarchy.bank_momentum must be at least 0 and below 1, not {self.bank_momentum}")
        if self.head_layers < 1:
            raise ValueError(f"hierarchy.head_layers must be at least 1, not {self.head_layers}")

    def resolved(self, N: int, epochs: int) -> Hierarchy:
        """The settings with the defaults for N images and `epochs` epochs filled in."""
        return replace(
            self,
            levels=self.levels_for(N),
            start_epoch=self.start_for(epochs),
            weight=self.weight_or_one,
            assign=self.assign_or_stored,
        )

    @property
    def weight_or_one(self) -> float:
        """The factor on L_SPD: the given one, or that of Eq. 4."""
        return 1.0 if self.weight is None else self.weight

    @property
    def assign_or_stored(self) -> Literal["stored", "step"]:
        """Where an image's leaf comes from: as given, or as most methods have it."""
        return "stored" if self.assign is None else self.assign

    def levels_for(self, N: int) -> tuple[int, ...]:
        """Return the levels for N images: the given ones, if they fit, or suggested ones."""
        return check_levels(self.levels, N) if self.levels is not None else tuple(suggest_levels(N))

    def scaled(self, epochs: int, to: int) -> Hierarchy:
        """The settings for another number of epochs, with the first tree at the same share of them."""
        if self.start_epoch is None:
            return self
        return replace(self, start_epoch=max(1, self.start_epoch * to // epochs))

    def start_for(self, epochs: int) -> int:
        """Return T₁ for a run of `epochs` epochs."""
        return max(1, epochs // 10) if self.start_epoch is None else self.start_epoch
