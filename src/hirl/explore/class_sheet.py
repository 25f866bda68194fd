"""A contact sheet of a data set: a row per class, grouped by coarser classes; without labels a grid."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.data.sources.skipped import Skipped
from hirl.explore.figure_style import FAINT, INK, PAPER
from hirl.explore.thumbnails import thumbnail

_TEXT, _GAP, _HEAD, _MARGIN = 150, 2, 28, 16
MOST_HEADING = 480  # pixels: a sheet of few columns is widened for its heading, up to this
MOST_CLASSES = 200  # rows: a longer sheet is of little use


def class_sheet(images: ImageSet, *, tile: int = 64, columns: int = 4, skipped: Skipped | None = None) -> Image.Image:
    """Draw the first `columns` images of each of the finest classes.

    An unreadable image is a crossed-out tile and recorded in `skipped`.
    """
    if tile < 8 or columns < 1:
        raise ValueError(f"tile and columns are {tile} and {columns}, but must be at least 8 pixels and 1")
    blocks = _blocks(images, columns)
    text = 0 if images.labels is None else _TEXT  # without labels no row has a name
    skipped = Skipped() if skipped is None else skipped
    rows = [len(rows) for _, rows in blocks]
    halves = 2 if sum(rows) > 12 and len(blocks) > 1 else 1
    per_half = math.ceil(sum(rows) / halves)
    heading, plain = ImageFont.load_default(15), ImageFont.load_default(13)
    longest = max(math.ceil(heading.getlength(heading_text)) for heading_text, _ in blocks)
    width = max(text + columns * (tile + _GAP), min(longest, MOST_HEADING))
    at: list[tuple[int, int]] = []  # per block: its half of the sheet and its top
    half, top, used = 0, _MARGIN, 0
    for count in rows:
        if used >= per_half and half + 1 < halves:
            half, top, used = half + 1, _MARGIN, 0
        at.append((half, top))
        top += _HEAD + count * (tile + _GAP)
        used += count
    bottoms = [y + _HEAD + count * (tile + _GAP) for (_, y), count in zip(at, rows, strict=True)]
    sheet = Image.new("RGB", (halves * (width + _MARGIN) + _MARGIN, max(bottoms) + _MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    for (heading_text, members), (half, top) in zip(blocks, at, strict=True):
        x = _MARGIN + half * (width + _MARGIN)
        pen.text((x, top + 4), heading_text, INK, heading)
        for row, (name, indices) in enumerate(members):
            y = top + _HEAD + row * (tile + _GAP)
            pen.text((x, y + tile // 2), name if len(name) < 22 else f"{name[:20]}…", FAINT, plain, anchor="lm")
            for column, index in enumerate(indices):
                left = x + text + column * (tile + _GAP)
                try:
                    sheet.paste(thumbnail(images, index, tile), (left, y))
                except BadImage as bad:
                    skipped.add(bad)
                    right, bottom = left + tile - 1, y + tile - 1
                    pen.rectangle((left, y, right, bottom), outline=FAINT)
                    pen.line((left, y, right, bottom), FAINT)
                    pen.line((left, bottom, right, y), FAINT)
    return sheet


Block = tuple[str, list[tuple[str, list[int]]]]  # a heading, and rows of a class name and the indices of its images


def _blocks(images: ImageSet, columns: int) -> list[Block]:
    if images.labels is None:
        shown = torch.linspace(0, len(images) - 1, min(len(images), 12 * columns)).round().long().unique().tolist()
        rows = [("", shown[start : start + columns]) for start in range(0, len(shown), columns)]
        return [(_title(images, len(shown)), rows)]
    names = images.label_names
    blocks: dict[str, list[tuple[str, list[int]]]] = {}
    order = images.labels.flip(1)  # coarse to fine, so that the classes of a block are consecutive
    classes = torch.unique(order, dim=0)
    if len(classes) > MOST_CLASSES:
        classes = classes[torch.linspace(0, len(classes) - 1, MOST_CLASSES).round().long()]
    for labels in classes.tolist():
        above = [names[level][label] for level, label in zip(range(len(names) - 1, 0, -1), labels, strict=False)]
        members = (order == torch.tensor(labels)).all(1).nonzero().flatten()[:columns].tolist()
        blocks.setdefault("  ›  ".join(above), []).append((names[0][labels[-1]], members))
    title = _title(images, sum(len(members) for rows in blocks.values() for _, members in rows))
    return [(heading or title, rows) for heading, rows in blocks.items()]


def _title(images: ImageSet, shown: int) -> str:
    count = f"{len(images):,} images" if shown == len(images) else f"{shown:,} of {len(images):,} images"
    return f"{Path(images.name).name or images.name}: {count}"
