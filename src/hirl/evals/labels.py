"""Labels of the images in an evaluation: names of their levels, the checks before they are learnt, and accuracies."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Part, Row, Subject
from hirl.features.image_request import NoLabels
from hirl.metrics.agreement import majority_share, parents
from hirl.terminal.figures import share


def level_name(images: ImageSet, level: int) -> str:
    """A label level's name in tables: its number of classes."""
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
    """The labels (N, levels) of both parts, checked: images that cannot be read may have left a class empty."""
    check_labels(subject.parts)
    return labels_of_part(subject.train), labels_of_part(subject.test)


def check_labels(parts: Mapping[Part, ImageSet]) -> None:
    """A ValueError unless the parts have the same levels and classes, and images of each."""
    if any(images.labels is None for images in parts.values()) or "train" not in parts:
        for images in parts.values():
            labels_of_part(images)
        return
    train, test = parts["train"], parts["test"]
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
    for images in (train, test):
        labels_of_part(images)


def accuracies(predictions: Tensor, truth: Tensor, known: Tensor, *, level: int, images: ImageSet) -> list[Row]:
    """The share of images classified correctly at `level`, and at each coarser level in which it is nested.

    predictions: (N,) classes of `level`; truth: (N, levels); known: (M, levels), the labels that give the nesting.
    """
    rows: list[Row] = [_row(images, level, predictions, truth, "learnt")]
    for coarse in range(level + 1, truth.shape[1]):
        parent = parents(known, level, coarse)
        if parent is not None:
            rows.append(_row(images, coarse, parent[predictions], truth, "parent of the finer class"))
    return rows


def _row(images: ImageSet, level: int, predictions: Tensor, truth: Tensor, how: str) -> Row:
    accuracy = share(float((predictions == truth[:, level]).double().mean()))
    majority = share(majority_share(truth[:, level]))
    return {"labels": level_name(images, level), "accuracy": accuracy, "majority": majority, "prediction": how}
