"""Where an encoder's weights come from, and the images they were trained for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Interpolation = Literal["bilinear", "bicubic"]
SMALLEST = 96  # pixels; networks made for photographs see little in images that are smaller


@dataclass(frozen=True)
class Provenance:
    """Where weights come from. Printed when an encoder is opened, kept in files, and shown on pages.

    labels: whether labels were used in training; None if that is not known
    left_out: tensors of the source that are not used, such as heads
    since: how the weights were trained since, without labels, if they are no longer those of the source
    """

    source: str
    licence: str | None = None
    labels: bool | None = None
    random: bool = False
    left_out: str = ""
    since: str = ""

    def __str__(self) -> str:
        since = f"; since then {self.since}" if self.since else ""
        if self.random:
            return f"{self.source}{since}"
        trained = {None: "", True: ", trained with labels", False: ", trained without labels"}[self.labels]
        left_out = f", without {self.left_out}" if self.left_out else ""
        return f"{self.source}{left_out}, licence {self.licence or 'not stated'}{trained}{since}"

    def trained_on(self, how: str) -> Provenance:
        """The provenance of weights that were trained further."""
        return replace(self, left_out="", since=f"{self.since}, {how}" if self.since else how)

    @classmethod
    def read(cls, found: Any) -> Provenance | None:
        """From the plain data in a file; None if there is none, or it is damaged."""
        try:
            return cls(**found)
        except TypeError:
            return None


RANDOM = Provenance("random weights", random=True)


@dataclass(frozen=True)
class ImageFormat:
    """Images as the source of the weights prepares them.

    size: side in pixels; `fixed` if the network takes no other
    crop: the share of the resized image that the central square keeps
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = "bilinear"
    crop: float = 0.875
    fixed: bool = False

    def size_for(self, side: int, *, patch: int = 1) -> int:
        """The side at which images of `side` pixels are used: their own, but at least 96 and at most the source's.

        Small images are enlarged no further, since the time of a pass grows with the square of the side.
        """
        if self.fixed:
            return self.size
        size = min(self.size, max(SMALLEST, side))
        return min(self.size, -(-size // patch) * patch)


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
