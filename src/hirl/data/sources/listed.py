"""Images named by lists at the top of a folder, one list per split, one path and class number per line (Places205)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import torch

from hirl.data.sources.decode import is_image_name
from hirl.data.sources.escape import one_line
from hirl.data.sources.file_images import open_files
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.splits import choose_split, usual_name

_SUFFIXES = (".csv", ".txt")
_LINE = re.compile(r"/?(?P<path>.+?)[\s,;]+(?P<label>\d+)")
_Entry = tuple[PurePosixPath, int]


def find_lists(root: Path, names: Iterable[str]) -> dict[str, Path]:
    """The list of each split among the files at the top of `root`: `train_places205.csv`, `places365_val.txt`, …"""
    found: dict[str, Path] = {}
    for name in sorted(names):
        parts = re.split(r"[^A-Za-z]+", name)
        split = next((usual for part in parts if (usual := usual_name(part))), None)
        if split is not None and name.lower().endswith(_SUFFIXES) and _is_list(root / name):
            found.setdefault(split, root / name)
    return found


def _is_list(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as lines:
        line = _LINE.fullmatch(lines.readline().strip())
    return line is not None and is_image_name(line["path"])


def open_listed(root: Path, lists: Mapping[str, Path], *, split: str | None, channels: int) -> ImageSet:
    """The images of one split. Their paths are relative to `root` or to a folder directly below it.

    A class is named after the folder that holds all its images, over all splits, or else by its number.
    """
    name = one_line(str(root))
    chosen = choose_split(split, lists, name=name)
    entries = {part: _read(file) for part, file in lists.items()}
    names = _class_names(entry for part in entries.values() for entry in part)
    listed = entries[chosen]
    start = _start(root, listed[0][0])
    return open_files(
        [f"{start}/{path}" for path, _ in listed],
        name=f"{name}/{chosen}",
        channels=channels,
        labels=torch.tensor([[label] for _, label in listed]),
        label_names=(names,),
    )


def _read(file: Path) -> list[_Entry]:
    entries = []
    for place, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not text.strip():
            continue
        line = _LINE.fullmatch(text.strip())
        path = PurePosixPath(line["path"] if line else "")
        if line is None or path.is_absolute() or ".." in path.parts:  # a second leading / makes it absolute
            raise ValueError(
                f"line {place} of {one_line(str(file))} is {one_line(text)!r}, but must be a path below the folder and "
                "a class number"
            )
        entries.append((path, int(line["label"])))
    return entries


def _class_names(entries: Iterable[_Entry]) -> tuple[str, ...]:
    folders: dict[int, set[PurePosixPath]] = {}
    for path, label in entries:
        folders.setdefault(label, set()).add(path.parent)
    named = {label: str(next(iter(of))) if len(of) == 1 else str(label) for label, of in folders.items()}
    distinct = len(set(named.values())) == len(named)
    return tuple(named.get(label, str(label)) if distinct else str(label) for label in range(max(folders) + 1))


def _start(root: Path, first: PurePosixPath) -> Path:
    below = sorted(folder for folder in root.iterdir() if folder.is_dir())
    for folder in (root, *below):
        if (folder / first).is_file():
            return folder
    raise ValueError(
        f"{one_line(str(first))}, the first image listed for {one_line(str(root))}, is neither there nor in a folder "
        "directly below: unpack the images next to their lists"
    )
