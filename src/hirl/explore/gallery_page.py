"""The gallery page: groups of images under headings, such as results of a search or copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hirl.data.own_folders import SHEETS
from hirl.explore.page import file_data, pack, write_page
from hirl.explore.thumbnails import LARGEST, Picture, write_sheets
from hirl.terminal.progress import Progress, no_progress


@dataclass(frozen=True)
class Tile:
    """An image of a gallery. `mark`, such as keep or drop, is shown above it; the page can filter by it."""

    picture: Picture
    caption: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Group:
    heading: str
    tiles: Sequence[Tile]
    note: str = ""


@dataclass(frozen=True)
class Gallery:
    title: str
    heading: str
    groups: Sequence[Group]
    facts: Sequence[str] = field(default_factory=tuple)
    about: str = ""


def write_gallery(aside: Path, folder: Path, gallery: Gallery, *, progress: Progress = no_progress) -> None:
    """Write the page and its thumbnails to `aside`, which will become `folder`. Each image is stored once."""
    numbers: dict[tuple[int, int], int] = {}
    pictures: list[Picture] = []
    groups: list[dict[str, Any]] = []
    for group in gallery.groups:
        places = []
        for tile in group.tiles:
            images, index = tile.picture
            key = (id(images), index)
            if key not in numbers:
                numbers[key] = len(pictures)
                pictures.append(tile.picture)
            places.append(numbers[key])
        groups.append(
            {
                "heading": group.heading,
                "note": group.note,
                "images": pack(places, "i4"),
                "captions": [tile.caption for tile in group.tiles],
                "marks": [tile.mark for tile in group.tiles],
            }
        )
    sheets = write_sheets(pictures, aside / SHEETS, largest=2 * LARGEST, progress=progress)
    data = {
        "title": gallery.title,
        "heading": gallery.heading,
        "facts": list(gallery.facts),
        "about": gallery.about,
        "groups": groups,
        "sheets": sheets.layout(),
    } | file_data([images.path(index) for images, index in pictures], folder)
    write_page(aside, "gallery", gallery.title, data)
