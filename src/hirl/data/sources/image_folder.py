"""A folder of images: flat, one folder per class, nested classes, or any of these below train/ and val/."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.data.sources.file_images import FileImages
from hirl.data.sources.folder_labels import Folder, folder_labels
from hirl.data.sources.image_set import ImageSet, LabelNames
from hirl.data.sources.splits import are_splits, choose_split, no_splits


def open_image_folder(
    root: Path, images: Mapping[str, list[str]], *, split: str | None, channels: int, labelled: bool | None
) -> ImageSet:
    """`images`: the file names per folder, as returned by `scan`; at least one.

    Labels come from folder names; classes are numbered over all splits, so that train and val agree.
    """
    name = one_line(str(root))
    found = {PurePosixPath(folder).parts: names for folder, names in images.items()}
    tops = {folder[0] for folder in found if folder}
    part: Folder = ()
    if () not in found and are_splits(tops):
        part = (choose_split(split, tops, name=name),)
        name = f"{name}/{one_line(part[0])}"
    else:
        no_splits(split, name=name)

    chosen = [folder for folder in found if folder[: len(part)] == part]
    levels = None if labelled is False else _levels(list(found), part)
    if levels is None and labelled is not False:
        flat = len(chosen) == 1
        problem = f"{name} has no class folders" if flat else f"{name} has images beside its class folders"
        if labelled:
            raise ValueError(f"{problem}, so labelled=True is not possible")
        if not flat:
            remedy = "so it is treated as unlabelled: move them into a class folder to have labels"
            warnings.warn(f"{problem}, {remedy}", stacklevel=3)
    counts = [len(found[folder]) for folder in chosen]
    labels = None
    if levels is not None:
        of_chosen = torch.stack([levels[0][folder] for folder in chosen])  # (folders, levels)
        labels = of_chosen.repeat_interleave(torch.tensor(counts), dim=0)  # (N, levels)
    return FileImages(
        name=name,
        channels=channels,
        folders=[str(root.joinpath(*folder)) for folder in chosen],
        folder_of=np.repeat(np.arange(len(chosen)), counts),
        file_names=[image for folder in chosen for image in found[folder]],
        labels=labels,
        label_names=levels[1] if levels is not None else (),
    )


def _levels(folders: list[Folder], part: Folder) -> tuple[dict[Folder, Tensor], LabelNames] | None:
    """The labels per folder, over all parts that have labels: a part with images outside class folders has none."""
    unlabelled = {folder for folder in folders if len(folder) == len(part)}
    classes = [folder for folder in folders if folder[: len(part)] not in unlabelled]
    labels = None if part in unlabelled else folder_labels([folder[len(part) :] for folder in classes])
    return None if labels is None else (dict(zip(classes, labels[0], strict=True)), labels[1])
