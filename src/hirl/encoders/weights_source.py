"""Where an encoder's weights come from, and the images they were trained for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Interpolation = Literal["bilinear", "bicubic"]
SMALLEST = 96  # pixels; networks made for photographs see little in images that are smaller


@dataclass(frozen=True)
class Provenance:
    """Where weights come from. Printed when an encoder is opened, kept in files, and shown on pages.

    labels: whether labels were used in training; None if that is not known
    """

    source: str
    licence: str | None = None
    labels: bool | None = None
    random: bool = False

    def __str__(self) -> str:
        if self.random:
            return self.source
        trained = {None: "", True: ", trained with labels", False: ", trained without labels"}[self.labels]
        return f"{self.source}, licence {self.licence or 'not stated'}{trained}"


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
