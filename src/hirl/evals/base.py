"""The contract of an evaluation: its arguments are the protocol, `run` turns a subject into figures."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.hierarchy.tree import PrototypeTree
from hirl.terminal.progress import Progress, no_progress

CPU = torch.device("cpu")
Part = Literal["train", "test"]
Row = Mapping[str, Any]  # column → value


@dataclass(frozen=True)
class Subject:
    """What is evaluated and on which images: all that an evaluation may look at."""

    name: str
    encoder: nn.Module  # images (B, C, H, W) → features (B, width); in eval mode and frozen
    image_size: int
    normalisation: Normalisation
    train: ImageSet  # labels (N, levels), the finest level first
    test: ImageSet
    features: Callable[[Part], Tensor]  # (N, width) of a part's images shown whole; made once and shared by all tasks
    representations: Callable[[Part], Tensor] | None = None  # (N, 1 + L, D): z⁰…zᴸ, where there is a run with heads
    tree: PrototypeTree | None = None  # over the images the run was trained on
    method: str | None = None  # the class name of the method that trained it: official settings differ
    seed: int = 0
    device: torch.device = CPU
    progress: Progress = no_progress


@dataclass(frozen=True)
class Result:
    """What an evaluation found.

    headline: the few figures a comparison puts side by side, by name
    rows: all figures, as a table
    chosen: what the protocol settled on where it left a choice (a scaled rate, the number of clusters)
    """

    headline: dict[str, float]
    rows: list[Row]
    chosen: dict[str, Any] = field(default_factory=dict)


class Evaluation(ABC):
    """One way to tell how good a representation is; a frozen dataclass, whose fields are its typed arguments."""

    name: ClassVar[str]
    """What it is called on the command line and in the results."""

    @abstractmethod
    def run(self, subject: Subject) -> Result:
        """The figures of a subject. A ValueError says in one sentence why there cannot be any."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments and their values."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}


def level_name(images: ImageSet, level: int) -> str:
    """How a label level is called in tables: by its number of classes, which people know their data by."""
    counts = [len(names) for names in images.label_names]
    return f"{counts[level]} classes" + (f" (level {level})" if counts.count(counts[level]) > 1 else "")


def level_names(images: ImageSet) -> list[str]:
    """The names of all label levels, finest first."""
    return [level_name(images, level) for level in range(len(images.label_names))]


def labels_of_part(images: ImageSet) -> Tensor:
    """The labels (N, levels) of one part, checked: every level has at least two classes, and none is without images."""
    if images.labels is None:
        raise ValueError(f"{images.name} has no labels, but this evaluation needs them: name labelled images")
    for level, names in enumerate(images.label_names):
        if len(names) < 2:
            raise ValueError(
                f"{images.name} has one class only at label level {level}, but this evaluation needs at least two"
            )
        counts = images.labels[:, level].bincount(minlength=len(names))
        if not counts.all():
            absent = [names[place] for place in (counts == 0).nonzero().flatten().tolist()]
            raise ValueError(
                f"{images.name} has no image of {len(absent)} of its {len(names)} classes at label level {level} "
                f"({absent[0]!r} for one): both parts need images of every class"
            )
    return images.labels


def labels_of(subject: Subject) -> tuple[Tensor, Tensor]:
    """The labels (N, levels) of both parts, checked: both have them, of the same classes, and all can be learnt."""
    train, test = subject.train, subject.test
    for images in (train, test):
        if images.labels is None:
            labels_of_part(images)  # says so, before classes are compared of which there are none
    if len(train.label_names) != len(test.label_names):
        raise ValueError(
            f"{train.name} has {len(train.label_names)} label levels and {test.name} has {len(test.label_names)}: "
            "both parts must have the same ones"
        )
    for level, (learnt, asked) in enumerate(zip(train.label_names, test.label_names, strict=True)):
        if learnt != asked:
            only = sorted(set(learnt) ^ set(asked))
            where = train.name if only and only[0] in learnt else test.name
            raise ValueError(
                f"the classes of {train.name} and {test.name} differ at label level {level}"
                + (f" ({len(only)} of them; {only[0]!r} is in {where} alone)" if only else " in their order")
                + ": both parts must have the same ones"
            )
    return labels_of_part(train), labels_of_part(test)
