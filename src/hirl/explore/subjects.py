"""The subject of a command (a file of features, a run or images), and the folder it writes to by default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from hirl.encoders.backbones import is_timm_name
from hirl.encoders.published import RANDOM_PREFIX, TORCHVISION
from hirl.explore.kept_tree import IMAGES
from hirl.explore.work_folders import work_folder
from hirl.features.feature_files import KINDS
from hirl.features.open_encoder import WEIGHT_FILES, run_of_checkpoint
from hirl.files import expanded
from hirl.hierarchy.tree import is_tree
from hirl.runs.folder import RunFolder

Kind = Literal["features", "run", "images"]


def subject_kind(subject: Any) -> Kind:
    """The kind of the subject; raises a ValueError for anything that is none of these."""
    if isinstance(subject, RunFolder):
        return "run"
    if not isinstance(subject, str | os.PathLike):
        return "images"
    text = os.fspath(subject)
    path = expanded(text)
    if path.suffix.lower() in KINDS and not path.is_dir():
        return "features"
    if RunFolder(path).exists or run_of_checkpoint(path) is not None:
        return "run"
    if (path / IMAGES).is_file():
        raise ValueError(f"{text!r} is hirl's output for a folder of images, but must be that folder itself")
    if path.suffix.lower() in WEIGHT_FILES and path.is_file():
        if is_tree(path):
            raise ValueError(
                f"{text!r} is a tree, but must be features, a run or images: use hirl tree features.npy --data IMAGES "
                f"--tree {text}"
            )
        raise _an_encoder(text)
    if not path.exists() and (text.startswith((RANDOM_PREFIX, TORCHVISION)) or is_timm_name(text)):
        raise _an_encoder(text)
    if not path.exists() and ("/" in text or path.suffix):
        raise ValueError(f"{text!r} is not found, but must be a run folder, a folder of images or a file of features")
    return "images"


def default_folder(subject: str | os.PathLike[str], name: str, *, encoder: str | None = None) -> Path:
    """The default folder of a page: in the run folder or the `work_folder`; for a file beside it, named after it."""
    path = Path(subject)
    if subject_kind(subject) == "images":
        return work_folder(subject, encoder) / name
    return path / name if path.is_dir() else path.with_name(f"{path.stem}_{name}")


def _an_encoder(name: str) -> ValueError:
    return ValueError(f"{name!r} is an encoder, but must be images: name them, and add --encoder {name}")
