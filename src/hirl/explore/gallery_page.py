"""The gallery page: groups of images under headings, such as results of a search or copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def write_gallery(
    aside: Path,
    folder: Path,
    groups: Sequence[Group],
    *,
    title: str,
    heading: str,
    facts: Sequence[str],
    about: str = "",
    progress: Progress = no_progress,
) -> None:
    """Write the page and its thumbnails to `aside`, which will become `folder`. Each image is stored once."""
    pictures = list(dict.fromkeys(tile.picture for group in groups for tile in group.tiles))
    number = {picture: place for place, picture in enumerate(pictures)}
    data = {
        "title": title,
        "heading": heading,
        "facts": list(facts),
        "about": about,
        "groups": [
            {
                "heading": group.heading,
                "note": group.note,
                "images": pack([number[tile.picture] for tile in group.tiles], "i4"),
                "captions": [tile.caption for tile in group.tiles],
                "marks": [tile.mark for tile in group.tiles],
            }
            for group in groups
        ],
        "sheets": write_sheets(pictures, aside / SHEETS, largest=2 * LARGEST, progress=progress),
    } | file_data([images.path(index) for images, index in pictures], folder)
    write_page(aside, "gallery", title, data)
