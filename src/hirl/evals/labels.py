"""Labels of the images in an evaluation: names of their levels, and the checks before they are learnt or compared."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Part, Subject

ADVICE = "name labelled images (hirl evaluate --data, hirl compare --evaluation_data)"


class NoLabels(ValueError):  # noqa: N818
    """An evaluation needs labels, and `name`, the images it is to run on, have none."""

    def __init__(self, name: str, advice: str = ADVICE, task: str = "") -> None:
        prefix = f"{task}: " if task else ""
        super().__init__(f"{prefix}{name} has no labels, but this evaluation needs them: {advice}")
        self.name, self.advice = name, advice


def level_name(images: ImageSet, level: int) -> str:
    """A label level's name in tables: its number of classes, by which people know their data."""
    counts = [len(names) for names in images.label_names]
    return f"{counts[level]} classes" + (f" (level {level})" if counts.count(counts[level]) > 1 else "")


def level_names(images: ImageSet) -> list[str]:
    """The names of all label levels, finest first."""
    return [level_name(images, level) for level in range(len(images.label_names))]


def check_level(level: int, images: ImageSet) -> None:
    levels = len(images.label_names)
    if not 0 <= level < levels:
        raise ValueError(f"level is {level}, but {images.name} has the label levels 0 (finest) to {levels - 1}")


def labels_of_part(images: ImageSet) -> Tensor:
    """The labels (N, levels) of one part, checked: each level has two classes or more, and each class an image."""
    if images.labels is None:
        raise NoLabels(images.name)
    for level, names in enumerate(images.label_names):
        if len(names) < 2:
            raise ValueError(
                f"{images.name} has only one class at label level {level}, but this evaluation needs at least two"
            )
        counts = images.labels[:, level].bincount(minlength=len(names))
        if not counts.all():
            absent = [names[place] for place in (counts == 0).nonzero().flatten().tolist()]
            raise ValueError(
                f"{images.name} has no image of {len(absent)} of its {len(names)} classes at label level {level} "
                f"(e.g. {absent[0]!r}): each part needs images of every class"
            )
    return images.labels


def labels_of(subject: Subject) -> tuple[Tensor, Tensor]:
    """The labels (N, levels) of both parts, checked: both have the same levels and classes, and images of each."""
    return _labels_of(subject.train, subject.test)


def _labels_of(train: ImageSet, test: ImageSet) -> tuple[Tensor, Tensor]:
    for images in (train, test):
        if images.labels is None:
            labels_of_part(images)  # raises, before classes that do not exist are compared
    if len(train.label_names) != len(test.label_names):
        raise ValueError(
            f"{train.name} has {len(train.label_names)} label levels and {test.name} has {len(test.label_names)}: "
            "both parts must have the same ones"
        )
    for level, (learnt, tested) in enumerate(zip(train.label_names, test.label_names, strict=True)):
        if learnt != tested:
            only = sorted(set(learnt) ^ set(tested))
            where = train.name if only and only[0] in learnt else test.name
            raise ValueError(
                f"the classes of {train.name} and {test.name} differ at label level {level}"
                + (f" ({len(only)} of them; {only[0]!r} is in {where} alone)" if only else " in their order")
                + ": both parts must have the same ones"
            )
    return labels_of_part(train), labels_of_part(test)


def check_labels(parts: Mapping[Part, ImageSet]) -> None:
    """A ValueError if labels are missing, or if those of the parts do not fit together."""
    if "train" in parts:
        _labels_of(parts["train"], parts["test"])
    else:
        labels_of_part(parts["test"])
