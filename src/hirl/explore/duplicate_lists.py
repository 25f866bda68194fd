"""Groups of duplicates as lists for other programs and as groups of a gallery page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hirl.explore.collection import Collection
from hirl.explore.duplicates import Copy, DuplicateGroup
from hirl.explore.file_lists import has_line_break
from hirl.explore.gallery_page import Group, Tile

COLUMNS = ("group", "action", "kind", "by", "cosine", "details", "row", "file")
Rows = list[dict[str, Any]]


def duplicate_rows(collection: Collection, groups: list[DuplicateGroup]) -> Rows:
    """A row per image of a group, the one to keep first; `by` is the rule that found a near duplicate."""

    def row(group: int, action: str, image: int, copy: Copy | None = None) -> dict[str, Any]:
        file, place = collection.images.path(image), int(collection.rows[image])
        found: tuple[Any, ...] = (None, None, None, None)
        if copy is not None:
            by = copy.by if copy.kind == "near" else None
            found = (copy.kind, by, round(copy.cosine, 6), round(copy.details, 4) if by else None)
        return dict(zip(COLUMNS, (group, action, *found, place, file), strict=True))

    rows: Rows = []
    for number, group in enumerate(groups):
        rows.append(row(number, "keep", group.keep))
        rows += [row(number, "drop", copy.image, copy) for copy in group.copies]
    return rows


def dropped(rows: Rows) -> Rows:
    return [row for row in rows if row["action"] == "drop"]


def duplicate_lists(rows: Rows) -> dict[str, Rows | None]:
    """The rows of each list; None for drop.txt if a file name contains a line break."""
    drop = dropped(rows)
    fits = not has_line_break([row["file"] for row in drop])
    return {"groups.csv": rows, "groups.json": rows, "drop.txt": drop if fits else None}


def duplicate_gallery(collection: Collection, groups: list[DuplicateGroup]) -> list[Group]:
    """The groups of the page: the image to keep first."""

    def name(image: int) -> str:
        return Path(collection.images.path(image)).name

    made = []
    for number, group in enumerate(groups):
        tiles = [Tile((collection.images, group.keep), name(group.keep), "keep")]
        for copy in group.copies:
            kind = copy.kind if copy.kind != "near" else f"near, {strength(copy)}"
            tiles.append(Tile((collection.images, copy.image), f"{kind} · {name(copy.image)}", "drop"))
        made.append(Group(f"Group {number}", tiles, f"{len(tiles)} images"))
    return made


def strength(copy: Copy) -> str:
    """What shows that an image is a near duplicate: its details, or the cosine of its features."""
    return f"details {copy.details:.2f}" if copy.by == "details" else f"{copy.cosine:.4f}"
