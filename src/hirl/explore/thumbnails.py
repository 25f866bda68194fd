"""Thumbnails in sheets: files of about a hundred, so that a page loads few files and little more than it shows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, ImageOps

from hirl.data.sources.image_set import ImageSet
from hirl.explore.readable import reading_threads
from hirl.terminal.progress import Progress, no_progress

Picture = tuple[ImageSet, int]  # an image of a set

COLUMNS = ROWS = 10
BLOCK = 16  # pixels of a WebP block: thumbnails aligned to blocks do not bleed into their neighbours
LARGEST, SMALLEST = 96, 16
QUALITY = 75
PROBED = 32  # images whose size is read to choose that of thumbnails


def thumbnail(images: ImageSet, index: int, side: int) -> Image.Image:
    """The central square of an image, as encoders crop it, reduced to `side`; smaller images are not enlarged."""
    pixels = images.read(index, shorter=side)
    picture = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    return ImageOps.fit(picture, (side, side), Image.Resampling.LANCZOS)


def thumbnail_side(pictures: Sequence[Picture], *, largest: int = LARGEST) -> int:
    """`largest`, or less if the images themselves are smaller."""
    probed = pictures[:: max(1, len(pictures) // PROBED)][:PROBED]
    shorter = max(min(images.read(index, shorter=largest).shape[-2:]) for images, index in probed)
    return max(SMALLEST, min(largest, shorter))


def write_sheets(
    pictures: Sequence[Picture], folder: Path, *, largest: int = LARGEST, progress: Progress = no_progress
) -> dict[str, int]:
    """Write the thumbnails of the pictures, in that order, as folder/0.webp, 1.webp, …

    Returns their layout for the page's data: i is in sheet i // (columns · rows), row by row in cells of `cell` pixels.
    """
    side = thumbnail_side(pictures, largest=largest) if pictures else largest
    cell = -(-side // BLOCK) * BLOCK
    folder.mkdir()
    per_sheet = COLUMNS * ROWS
    parts = [pictures[start : start + per_sheet] for start in range(0, len(pictures), per_sheet)]
    done = 0
    with ThreadPoolExecutor(reading_threads()) as pool:
        jobs = ((part, side, cell, folder / f"{number}.webp") for number, part in enumerate(parts))
        for count in pool.map(lambda job: _write_sheet(*job), jobs):
            done += count
            progress("thumbnails", done, len(pictures))
    return {"count": len(pictures), "side": side, "cell": cell, "columns": COLUMNS, "rows": ROWS}


def _write_sheet(pictures: Sequence[Picture], side: int, cell: int, file: Path) -> int:
    sheet = Image.new("RGB", (COLUMNS * cell, -(-len(pictures) // COLUMNS) * cell))
    for place, (images, index) in enumerate(pictures):
        x, y = place % COLUMNS * cell, place // COLUMNS * cell
        picture = thumbnail(images, index, side)
        if cell > side:  # fill the rest of the cell with the colours of the edge
            sheet.paste(picture.crop((side - 1, 0, side, side)).resize((cell - side, side)), (x + side, y))
            sheet.paste(picture.crop((0, side - 1, side, side)).resize((side, cell - side)), (x, y + side))
        sheet.paste(picture, (x, y))
    sheet.save(file, "WEBP", quality=QUALITY, method=4)
    return len(pictures)
