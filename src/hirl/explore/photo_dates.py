"""When a photo was taken, as its camera wrote it."""

from __future__ import annotations

import calendar
from pathlib import Path

TAKEN, CHANGED, CAMERA = 36867, 306, 34665  # EXIF: DateTimeOriginal in the camera's block, DateTime


def photo_month(path: str) -> str | None:
    """The month of a photo, such as "July 2019"; None where the file does not tell."""
    from PIL import Image

    try:
        with Image.open(Path(path)) as image:
            exif = image.getexif()
            text = str(exif.get_ifd(CAMERA).get(TAKEN) or exif.get(CHANGED) or "")
        year, month = (int(part) for part in text.split(":")[:2])
        return f"{calendar.month_name[month]} {year}" if year > 0 and 1 <= month <= 12 else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
