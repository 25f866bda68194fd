"""Settings of HIRL. `hierarchy=None` in their place is the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, TypeAlias, get_args

from hirl.hierarchy.builder import POOLED_FEATURES, HierarchicalKMeans, TreeBuilder
from hirl.hierarchy.levels import check_levels, levels_by_number

Assignment: TypeAlias = Literal["stored", "step"]
ClusteredFeatures: TypeAlias = Literal["bank", "pass"]
Discrimination: TypeAlias = Literal["paths", "nodes"]
EQ_4_WEIGHT = 1.0


@dataclass(frozen=True, kw_only=True)
class HierarchyDefaults:
    """Values for settings that are not given. Methods and encoders have defaults of their own."""

    start_share: float = 0.1  # T₁ as a share of the epochs: a tenth wherever the paper gives both, but for MoCo v3
    weight: float = EQ_4_WEIGHT
    assign: Assignment = "stored"
    features: ClusteredFeatures = "bank"
    head_layers: int = 2


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """HIRL on top of a method.

    Args:
        levels: Prototypes per level, fine to coarse; by default fitted to the number of images.
        loss: What L_SPD compares: "paths", the path of an image with other paths (Eq. 3); "nodes", at each level the
            image's node with all others, by a softmax over cosines, which leaves images of a node distinct. By default
            nodes without heads, else paths.
        negatives: For paths: negative paths per image; null for all.
        temperature: For nodes: that of the softmax.
        start_epoch: T₁, the first epoch with a tree, counted from 0. By default 0 from a trained encoder,
            half of the epochs if the method's arguments are chosen for the images, and a tenth of them for a method
            with arguments or a recipe.
        head_layers: Linear layers per head h_l; by default 2. 0, the default with a frozen or unfrozen encoder, means
            no heads: the tree and L_SPD use the encoder's features instead of z⁰.
        weight: Factor on L_SPD. By default that of the method's recipe in adapt/ with a frozen encoder, that of its
            recipe in small/ if its arguments are chosen for the images on a CPU, else 1, as in Eq. 4.
        features: What is clustered: "pass" embeds all images, unaugmented and in eval mode, as the paper does; "bank"
            saves that time and takes z⁰ of each image's second view from training, which is augmented, computed with
            batch norm in training mode and up to an epoch old. By default bank, or pass if the encoder is frozen, when
            it takes no time. A finished run's tree is always that of a pass.
        bank_momentum: For features from the bank: the share of the earlier epochs in the mean of z⁰ over epochs that is
            clustered. It averages out the augmentations; 0 clusters z⁰ of the last epoch alone.
        assign: Where an image's leaf comes from: "stored" is its leaf of the last clustering; "step" finds the leaf
            of its second global view, or of the only view, at every step. By default step for methods that assign
            images to clusters at every step themselves (SwAV), as in the paper, else stored.
        builder: Clusters the features into a tree. By default top-down K-means; without heads, Ward linkage of reduced
            features.
        rebuild: Build a new tree before every epoch, as in the paper. Otherwise the nodes and images of the first tree
            stay, and its prototypes follow the features. By default false without heads, else true.
    """

    levels: tuple[int, ...] | None = None
    loss: Discrimination | None = None
    negatives: int | None = 1000
    temperature: float = 0.07
    start_epoch: int | None = None
    head_layers: int | None = None
    weight: float | None = None
    features: ClusteredFeatures | None = None
    bank_momentum: float = 0.7
    assign: Assignment | None = None
    builder: Annotated[TreeBuilder | None, HierarchicalKMeans] = None  # options alone are those of K-means
    rebuild: bool | None = None

    def __post_init__(self) -> None:
        if self.levels is not None:
            object.__setattr__(self, "levels", check_levels(self.levels))
            if self.levels[0] < 2:
                raise ValueError(f"levels is {self.levels}, but the finest level needs at least 2 nodes")
        if self.start_epoch is not None and self.start_epoch < 0:
            raise ValueError(f"start_epoch is {self.start_epoch}, but must be at least 0")
        if self.weight is not None and not 0 <= self.weight < math.inf:
            raise ValueError(f"weight is {self.weight}, but must be a number of at least 0")
        if self.negatives is not None and self.negatives < 1:
            raise ValueError(f"negatives is {self.negatives}, but must be at least 1, or null for all")
        for name, choices in {"loss": Discrimination, "features": ClusteredFeatures, "assign": Assignment}.items():
            value = getattr(self, name)
            if value is not None and value not in get_args(choices):
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(get_args(choices))}")
        if self.builder is not None and not isinstance(self.builder, TreeBuilder):
            raise ValueError(f"builder is {self.builder!r}, but must be a tree builder such as HierarchicalKMeans()")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}, but must be a number above 0")
        if not 0 <= self.bank_momentum < 1:
            raise ValueError(f"bank_momentum is {self.bank_momentum}, but must be at least 0 and below 1")
        if self.head_layers is not None and self.head_layers < 0:
            raise ValueError(f"head_layers is {self.head_layers}, but must be at least 0")

    def for_epochs(self, epochs: int, to: int) -> Hierarchy:
        """The settings for another number of epochs, with the first tree at the same share of them."""
        if self.start_epoch is None:
            return self
        return replace(self, start_epoch=max(min(1, self.start_epoch), self.start_epoch * to // epochs))

    def resolve(self, N: int, epochs: int, defaults: HierarchyDefaults = HierarchyDefaults()) -> ResolvedHierarchy:
        """The settings of a run of `epochs` epochs on N images, with the defaults of what is not given."""
        given = {field.name: getattr(self, field.name) for field in fields(Hierarchy)}
        head_layers = defaults.head_layers if self.head_layers is None else self.head_layers
        first = max(1, int(epochs * defaults.start_share + 1e-9)) if defaults.start_share else 0
        usual_builder = POOLED_FEATURES if head_layers == 0 else HierarchicalKMeans()
        features: ClusteredFeatures = "pass" if head_layers == 0 else defaults.features
        chosen = {
            "levels": tuple(levels_by_number(N)) if self.levels is None else check_levels(self.levels, N),
            "loss": ("nodes" if head_layers == 0 else "paths") if self.loss is None else self.loss,
            "start_epoch": first if self.start_epoch is None else self.start_epoch,
            "weight": defaults.weight if self.weight is None else self.weight,
            "assign": ("stored" if head_layers == 0 else defaults.assign) if self.assign is None else self.assign,
            "features": features if self.features is None else self.features,
            "head_layers": head_layers,
            "rebuild": head_layers > 0 if self.rebuild is None else self.rebuild,
            "builder": usual_builder if self.builder is None else self.builder,
        }
        if (chosen["head_layers"], chosen["features"]) == (0, "bank"):
            raise ValueError("features is bank, which holds z0, but without heads (head_layers 0) must be pass")
        return ResolvedHierarchy(**given | chosen)


@dataclass(frozen=True, kw_only=True)
class ResolvedHierarchy(Hierarchy):
    """HIRL's settings of one run, with nothing left open."""

    levels: tuple[int, ...]
    loss: Discrimination
    start_epoch: int
    weight: float
    assign: Assignment
    features: ClusteredFeatures
    head_layers: int
    builder: TreeBuilder
    rebuild: bool
