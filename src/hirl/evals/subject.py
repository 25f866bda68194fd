"""The subject of an evaluation: made of an encoder and images, checked, and without images that cannot be read."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from hirl.data.sources.image_set import ImageSet, Subset
from hirl.encoders.backbones import feature_maps
from hirl.evals.base import Evaluation, Part, Subject
from hirl.evals.labels import check_labels
from hirl.features.extractor import Extractor
from hirl.features.open_encoder import Encoder
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.facts import Facts


def tree_of(encoder: Encoder) -> PrototypeTree | None:
    """The run's tree; None with a warning if it is damaged, as most evaluations do not need it."""
    try:
        return encoder.tree
    except ValueError as error:
        warnings.warn(f"there is no tree: {error}", stacklevel=2)
        return None


def make_subject(
    task: Evaluation,
    extractor: Extractor,
    parts: dict[Part, ImageSet],
    tree: PrototypeTree | None,
    facts: Facts,
    seed: int,
) -> Subject:
    """The encoder with the images of an evaluation; a ValueError if the evaluation needs more than there is.

    Features are computed when they are first read.
    """
    encoder, preprocessing = extractor.encoder, extractor.preprocessing
    run = encoder.run
    subject = Subject(
        name=encoder.name,
        encoder=extractor.network,
        image_size=preprocessing.size,
        normalisation=preprocessing.normalisation,
        interpolation=preprocessing.interpolation,
        parts=parts,
        features=lambda part: extractor.features(parts[part]),
        representations=None if run is None else lambda part: extractor.representations(parts[part]),
        tree=tree,
        method=None if run is None else run.method_name,
        facts=facts,
        seed=seed,
        device=preprocessing.device,
        workers=preprocessing.workers,
        progress=extractor.progress,
    )
    if task.needs.labels:
        check_labels(parts)
    if task.needs.feature_maps:
        blank = torch.zeros(1, subject.test.channels, subject.image_size, subject.image_size, device=subject.device)
        with torch.inference_mode():
            feature_maps(subject.encoder, blank)
    task.check(parts)
    return subject


def without_unreadable(subject: Subject, extractor: Extractor) -> Subject:
    """The subject without the images that cannot be read: their rows of features and labels are dropped."""
    rows = {part: extractor.readable(images).nonzero().flatten() for part, images in subject.parts.items()}
    if all(len(rows[part]) == len(images) for part, images in subject.parts.items()):
        return subject
    representations = subject.representations
    return replace(
        subject,
        parts={part: Subset(images, rows[part]) for part, images in subject.parts.items()},
        features=lambda part: subject.features(part)[rows[part]],
        representations=None if representations is None else lambda part: representations(part)[rows[part]],
    )


def check_images_named(task: Evaluation, data: Any, option: str) -> None:
    """Raise a ValueError if the evaluation is for other images than the run's, but `option` names none."""
    if task.needs.other_images and data is None:
        raise ValueError(f"{task.name} needs images other than the run's: name them with --{option}")
