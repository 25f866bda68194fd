"""Decoding of one image, of any format that Pillow supports, to a (C, H, W) uint8 tensor.

JPEGs are decoded by simplejpeg: the same pixels as Pillow's in less time, also at reduced size, and with errors for
damage that Pillow ignores. Other formats, and JPEGs that simplejpeg rejects, are decoded by Pillow.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 89_478_485  # above this Pillow warns of a decompression bomb: a quarter of a gigabyte as RGB
MAX_BYTES = 2**30

_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
_OTHERS = (".png", ".bmp", ".dib", ".gif", ".webp", ".avif", ".tif", ".tiff", ".tga", ".jp2")
HEIF = (".heic", ".heif")  # read if the library pillow-heif is installed: pip install hirl[heif]
HAS_HEIF = find_spec("pillow_heif") is not None
EXTENSIONS = (*_JPEG, *_OTHERS, ".ppm", ".pgm", ".pbm", ".pnm", *(HEIF if HAS_HEIF else ()))

# The exceptions that Pillow's plug-ins and simplejpeg raise for damaged files.
_OF_PYTHON = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, RuntimeError, OverflowError)
_DECODER_ERRORS = (*_OF_PYTHON, MemoryError, struct.error, zlib.error)

# Errors after which libjpeg would fill in grey or garbage, which Pillow accepts. Stray bytes, the commonest complaint,
# are harmless.
_SERIOUS_DAMAGE = ("premature end", "bad huffman code")

_ORIENTATION = 0x0112  # the EXIF tag
# The inverse of each orientation: whether height and width are swapped, then the axes to flip.
_TURNS: dict[int, tuple[bool, list[int]]] = {
    2: (False, [2]),
    3: (False, [1, 2]),
    4: (False, [1]),
    5: (True, []),
    6: (True, [2]),
    7: (True, [1, 2]),
    8: (True, [1]),
}
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")

DECODING = 2  # raise it whenever the same file gives other pixels: features and results of files depend on it


class DecodeError(ValueError):
    """The bytes cannot be decoded as an image; the message gives the reason."""


def is_image_name(name: str) -> bool:
    """Whether the extension, in upper or lower case, is that of an image."""
    return name.lower().endswith(EXTENSIONS)


@cache
def _register_heif() -> None:
    from pillow_heif import register_heif_opener

    register_heif_opener()


def decode(data: bytes, *, channels: int = 3, shorter: int | None = None) -> Tensor:
    """(C, H, W) uint8, upright, transparency over white, 16 bits scaled to 8, in `channels` (1 or 3) channels.

    shorter: a JPEG may be decoded at reduced size, see `reduction`
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise DecodeError("the file is empty")
    try:
        if HAS_HEIF:
            _register_heif()
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DecodeError(_too_large(f"{image.width} x {image.height}"))
            return _upright(_decoded(image, data, channels, shorter), _orientation(image))
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:
        raise DecodeError(_too_large("its")) from error
    except UnidentifiedImageError as error:
        raise DecodeError("it is not an image, or of a format that Pillow does not support") from error
    except _DECODER_ERRORS as error:
        raise DecodeError(f"it is damaged or truncated ({_reason(error)})") from error


def reduction(width: int, height: int, shorter: int | None) -> int:
    """The largest of 8, 4 and 2 that divides both sides and leaves `shorter` pixels on the shorter one; else 1.

    Where a side does not divide, its last pixel would stand for fewer pixels than the others: resized, the image would
    be stretched, by enough to shift a crop by a pixel.
    """
    return next(
        (by for by in (8, 4, 2) if shorter and width % by == height % by == 0 and min(width, height) >= by * shorter), 1
    )


def _decoded(image: Image.Image, data: bytes, channels: int, shorter: int | None) -> Tensor:
    if image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L"):
        pixels = _jpeg(data, channels, image.size, reduction(*image.size, shorter))
        if pixels is not None:
            return pixels
    image.load()  # mode and palette are final only after this
    image, mode = _eight_bits(image), "RGB" if channels == 3 else "L"
    pixels = torch.from_numpy(np.array(image if image.mode == mode else image.convert(mode)))  # (H, W, 3) or (H, W)
    return pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels[None]


def _jpeg(data: bytes, channels: int, size: tuple[int, int], reduced_by: int) -> Tensor | None:
    """(C, H, W) of an image of `size` (width, height), at a fraction of it.

    None for a file that violates the format but that Pillow may be able to decode.
    """
    import simplejpeg

    try:
        array = simplejpeg.decode_jpeg(
            data,
            colorspace="RGB" if channels == 3 else "GRAY",
            min_height=size[1] // reduced_by,
            min_width=size[0] // reduced_by,
            min_factor=float(reduced_by),
        )
    except ValueError as error:
        if any(damage in str(error).lower() for damage in _SERIOUS_DAMAGE):
            raise
        return None
    return torch.from_numpy(array).permute(2, 0, 1)


def _eight_bits(image: Image.Image) -> Image.Image:
    """The same image without palette or transparency, with 8 bits per channel."""
    from PIL import Image

    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in ("PNG", "PPM")):
        values = np.asarray(image).astype(np.uint32)
        if values.size and int(values.max()) > 0xFFFF:
            raise DecodeError("its values exceed 16 bits")
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DecodeError("its 32-bit values have no known range; store it with 8 or 16 bits per channel")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, picture).convert("RGB")
    return image


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, or 1 (upright) without one; damaged EXIF data are ignored."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except _DECODER_ERRORS:
        return 1


def _upright(pixels: Tensor, orientation: int) -> Tensor:
    if orientation not in _TURNS:
        return pixels
    swapped, mirrored = _TURNS[orientation]
    return (pixels.transpose(1, 2) if swapped else pixels).flip(mirrored)


def _too_large(size: str) -> str:
    return f"{size} pixels exceed the limit of {MAX_PIXELS:,}"


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")
