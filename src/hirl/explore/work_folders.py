"""The folder for the features, the tree and the pages of images without a run: runs/IMAGES-ENCODER.

A folder belongs to one set of images and one encoder, which a file in it names by their full paths. Another set of the
same name, or another file of weights of the same name, gets a folder of its own.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hirl.data.own_folders import OWNER
from hirl.encoders.embedded import DEFAULT_ENCODER
from hirl.explore.kept_tree import LEAST_KNOWN, kept_files
from hirl.files import expanded, read_json, write_json
from hirl.runs.folder import RunFolder, folder_name


@dataclass(frozen=True)
class Owner:
    """Full paths, or names of a data set and of an encoder.

    bytes   size of the encoder's file, by which it is known if it was moved
    """

    images: str
    encoder: str
    bytes: int | None = None


def work_folder(images: Any, encoder: Any = None) -> Path:
    """The folder for features of images and pages about them: runs/IMAGES-ENCODER, with their parents' names if taken.

    For the encoder that a run started from, it is start-IMAGES in the folder of the run.
    """
    within, by = Path("runs"), _text(encoder, DEFAULT_ENCODER)
    run = RunFolder(expanded(by).parent)
    name, of_start = _text(images, "images"), run.exists and run.start_file == expanded(by)
    if of_start:
        within = run.folder

    def folder(name: str, by: str) -> Path:
        return within / (f"start-{folder_name(name)}" if of_start else f"{folder_name(name)}-{folder_name(by)}")

    own = owner_of(images, encoder)
    first = folder(name, by)
    other = _owner_in(first)
    longer = folder(
        name if other is not None and other.images == own.images else _with_parent(name),
        by if other is None or other.encoder == own.encoder else _with_parent(by),
    )
    digest = hashlib.sha256(f"{own.images}\n{own.encoder}".encode(errors="surrogateescape")).hexdigest()[:8]
    places = [first, longer, first.with_name(f"{first.name}-{digest}")]
    found = {place: _owner_in(place) for place in places}
    for place, owner in found.items():
        if owner is not None and (owner.images, owner.encoder) == (own.images, own.encoder):
            return place
    free = (one for one, owner in found.items() if owner is None or _is_moved(owner, own, one, Path(name)))
    return next(free, places[-1])


def take_folder(folder: Path, images: Any, encoder: Any) -> None:
    """Make the folder, and note in it what it belongs to."""
    folder.mkdir(parents=True, exist_ok=True)
    own = owner_of(images, encoder)
    if _owner_in(folder) != own:
        write_json(folder / OWNER, asdict(own))


def owner_of(images: Any, encoder: Any) -> Owner:
    by = _text(encoder, DEFAULT_ENCODER)
    file = expanded(by)
    return Owner(_full(_text(images, "images")), _full(by), file.stat().st_size if file.is_file() else None)


def _text(given: Any, otherwise: str) -> str:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else otherwise


def _full(name: str) -> str:
    path = expanded(name)
    return str(path.resolve()) if path.exists() else name


def _with_parent(name: str) -> str:
    """The name of a file or folder with that of its parent: other-small for other/small."""
    path = expanded(name)
    if not path.exists() or not path.resolve().parent.name:
        return name
    return f"{folder_name(path.resolve().parent.name)}-{folder_name(name)}"


def _owner_in(folder: Path) -> Owner | None:
    """Whose a folder is; None if anybody may take it."""
    try:
        return Owner(**read_json(folder / OWNER))
    except (OSError, ValueError, TypeError):
        return None


def _is_moved(owner: Owner, own: Owner, folder: Path, images: Path) -> bool:
    """Whether a folder is that of the same images and encoder, which had other paths before."""
    if owner.encoder != own.encoder and (Path(owner.encoder).exists() or owner.bytes != own.bytes):
        return False
    if owner.images == own.images:
        return True
    files = kept_files(folder)
    if Path(owner.images).exists() or not files:
        return not Path(owner.images).exists()
    return sum((expanded(images) / file).exists() for file in files) >= LEAST_KNOWN * len(files)
