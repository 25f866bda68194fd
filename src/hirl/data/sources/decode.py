"""One encoded image, of any kind Pillow knows, as a (C, H, W) uint8 tensor.

JPEGs go through simplejpeg: the same pixels as Pillow's in less time, at reduced size too, and it notices damage
that Pillow passes over. Everything else, and a JPEG it finds odd, goes through Pillow.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 89_478_485  # from here on Pillow warns of a decompression bomb: a quarter of a gigabyte as RGB
MAX_BYTES = 2**30

_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
_OTHERS = (".png", ".bmp", ".dib", ".gif", ".webp", ".avif", ".tif", ".tiff", ".tga", ".jp2")
EXTENSIONS = (*_JPEG, *_OTHERS, ".ppm", ".pgm", ".pbm", ".pnm")

# What Pillow's plug-ins and simplejpeg let out on damaged files.
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    RuntimeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
)

# Where libjpeg would go on with grey or garbage, and Pillow lets it. Stray bytes, its commonest complaint, do no harm.
_SERIOUS_DAMAGE = ("premature end", "bad huffman code")

_ORIENTATION = 0x0112  # the EXIF tag
# What undoes each orientation: whether height and width are swapped, then the axes that are mirrored.
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


class DecodeError(ValueError):
    """These bytes are no image we can use; the text says why."""


def is_image_name(name: str) -> bool:
    """By the extension, in upper or lower case."""
    return name.lower().endswith(EXTENSIONS)


def decode(data: bytes, *, channels: int = 3, shorter: int | None = None) -> Tensor:
    """(C, H, W) uint8, upright, transparency over white, 16 bits scaled to 8, in `channels` (1 or 3) channels."""
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise DecodeError("the file is empty")
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DecodeError(_too_large(f"{image.width} x {image.height}"))
            return _upright(_decoded(image, data, channels, shorter), _orientation(image))
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:
        raise DecodeError(_too_large("its")) from error
    except UnidentifiedImageError as error:
        raise DecodeError("it is no image, or of a kind Pillow cannot read") from error
    except _DECODER_ERRORS as error:
        raise DecodeError(f"it is damaged or cut short ({_reason(error)})") from error


def _decoded(image: Image.Image, data: bytes, channels: int, shorter: int | None) -> Tensor:
    if image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L"):
        pixels = _jpeg(data, channels, shorter or 0)
        if pixels is not None:
            return pixels
    image.load()  # only now are mode and palette final
    return _tensor(_eight_bits(image), "RGB" if channels == 3 else "L")


def _jpeg(data: bytes, channels: int, shorter: int) -> Tensor | None:
    """(C, H, W); None for a file that breaks the rules of the format, of which Pillow may yet make something."""
    import simplejpeg

    try:
        array = simplejpeg.decode_jpeg(
            data,
            colorspace="RGB" if channels == 3 else "GRAY",
            min_height=shorter,
            min_width=shorter,
            min_factor=2.0 if shorter else 1.0,  # reducing by less saves no time
        )
    except ValueError as error:
        if any(damage in str(error).lower() for damage in _SERIOUS_DAMAGE):
            raise
        return None
    return torch.from_numpy(array).permute(2, 0, 1)


def _eight_bits(image: Image.Image) -> Image.Image:
    """The same picture without palette, transparency or more than 8 bits a channel."""
    from PIL import Image

    sixteen = image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if sixteen:
        values = np.asarray(image).astype(np.uint32)
        if values.size and int(values.max()) > 0xFFFF:
            raise DecodeError("its values pass 16 bits")
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DecodeError("its 32-bit values have no known range; store it with 8 or 16 bits a channel")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, picture).convert("RGB")
    return image


def _tensor(image: Image.Image, mode: str) -> Tensor:
    array = np.array(image if image.mode == mode else image.convert(mode))  # (H, W, 3) or (H, W)
    pixels = torch.from_numpy(array)
    return pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels[None]


def _orientation(image: Image.Image) -> int:
    """1 (upright) unless the EXIF data say otherwise; damage there does not spoil the picture."""
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
    return f"{size} pixels are more than the {MAX_PIXELS:,} an image may have"


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")
