"""Whether an image file is there and is as large as its annotations say."""

from __future__ import annotations

from pathlib import Path

from hirl.evals.detection.annotations import Broken

_ORIENTATION = 0x0112  # the EXIF tag
_SIDEWAYS = (5, 6, 7, 8)  # its values for pictures lying on their side


def check_image_file(file: Path, width: int, height: int) -> None:
    """Raises Broken unless the file is an image of this size, shown upright. Reads its header alone."""
    size = image_size(file)
    if size != (width, height):
        raise Broken(
            "image of another size", f"is {width} × {height} by its annotations, but {file} is {size[0]} × {size[1]}"
        )


def image_size(file: Path) -> tuple[int, int]:
    """Width and height, shown upright; raises Broken for a file that is missing or not an image."""
    from PIL import Image

    if not file.is_file():
        raise Broken("missing image file", f"is missing: there is no file {file}")
    try:
        with Image.open(file) as image:
            sideways = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
            return (image.height, image.width) if sideways else (image.width, image.height)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Broken("unreadable image file", f"cannot be read: {file} is not an image, or is damaged") from error
