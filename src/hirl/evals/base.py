"""The contract of an evaluation: its arguments and needs are the protocol, `run` turns a subject into figures."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hirl.data.sources.image_set import ImageSet
from hirl.data.views.normalisation import Normalisation
from hirl.encoders.weights_source import Interpolation
from hirl.features.image_request import ImageRequest, warn_of_overlap
from hirl.features.preprocessing import CPU
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.facts import Facts
from hirl.terminal.progress import Progress, no_progress

Part = Literal["train", "test"]
Row = Mapping[str, Any]  # column → value


def no_message(_text: str) -> None:
    """Print nothing."""


@dataclass(frozen=True)
class Needs:
    """What an evaluation needs, checked before the first one runs.

    train: images to learn from or to search, beside those to test on
    labels: labels in every part that is opened
    run: the tree and the heads of the run, where there is a run; its result then depends on them
    feature_maps: an encoder with dense feature maps, see `hirl.encoders.backbones.feature_maps`
    other_images: images that the user names, since those the run was trained on are not meant
    features: pooled features of centre-cropped images. Images that cannot be read are then left out of every part, so
        that features and labels have the same rows; otherwise the evaluation reads images and leaves them out itself
    """

    train: bool = True
    labels: bool = False
    run: bool = False
    feature_maps: bool = False
    other_images: bool = False
    features: bool = True


@dataclass(frozen=True)
class Subject:
    """An encoder and the images to evaluate it on: all that an evaluation may read."""

    name: str
    encoder: nn.Module  # images (B, C, H, W) → features (B, width); frozen and in eval mode
    image_size: int
    normalisation: Normalisation
    interpolation: Interpolation = field(default="bilinear", kw_only=True)  # of test images, when they are resized
    parts: Mapping[Part, ImageSet]  # labels (N, levels), the finest level first
    features: Callable[[Part], Tensor]  # (N, width) of a part's centre-cropped images; computed once for all tasks
    representations: Callable[[Part], Tensor] | None = None  # (N, 1 + L, D): z⁰…zᴸ, where there is a run
    tree: PrototypeTree | None = None  # over the images the run was trained on
    method: str | None = None  # class name of the method that trained the encoder
    facts: Facts = field(default=Facts(), kw_only=True)  # about that method: official settings differ
    seed: int = 0
    device: torch.device = CPU
    workers: int | None = None  # processes that read images; None: as suits them
    # For files beside the result, such as a checkpoint of long training. Not created yet; None if there is no result
    # file, or if the content of the images is unknown: nothing could be continued.
    folder: Path | None = None
    progress: Progress = no_progress
    message: Callable[[str], None] = no_message  # prints a line

    @property
    def train(self) -> ImageSet:
        if "train" not in self.parts:
            raise ValueError("there are no training images: the evaluation's needs do not name them")
        return self.parts["train"]

    @property
    def test(self) -> ImageSet:
        return self.parts["test"]


@dataclass(frozen=True)
class Result:
    """The figures of an evaluation.

    headline: the few figures that a comparison puts side by side, by name
    rows: all figures, as the rows of one or more tables
    chosen: values the evaluation chose itself (a scaled rate, the number of clusters)
    """

    headline: Mapping[str, float]  # see `hirl.terminal.figures.Figure` for their kinds
    rows: list[Row]
    chosen: dict[str, Any] = field(default_factory=dict)


class Evaluation(ABC):
    """One measure of a representation: a frozen dataclass whose fields are its typed arguments."""

    name: ClassVar[str]
    """On the command line and in results."""
    revision: ClassVar[int] = 1
    """Incremented when the same arguments give different figures, so that stored results are not reused."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def open_parts(self, request: ImageRequest) -> dict[Part, ImageSet]:
        """The images it needs. Override it to open data of another kind, such as images with boxes and masks.

        `test` must be there; any `ImageSet` will do.
        """
        test = request.test(held_out=self.needs.train, labelled=self.needs.labels)
        if not self.needs.train:
            return {"test": test}
        train = request.train()
        if (request.test_data, request.test_split) != (None, None):
            warn_of_overlap(train, test)
        return {"train": train, "test": test}

    def check(self, parts: Mapping[Part, ImageSet]) -> None:  # noqa: B027 (most need no more than `needs` says)
        """Raise a ValueError of one sentence if the evaluation cannot run on these images.

        Called for all evaluations before the first one runs, before any features are computed, and by `hirl compare`
        before anything is trained.
        """

    @abstractmethod
    def run(self, subject: Subject) -> Result:
        """The figures of a subject, or a ValueError of one sentence if there cannot be any."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments and their values."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
