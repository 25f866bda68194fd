"""Every kind of image file arrives upright, as (C, H, W) uint8, or is refused with its reason."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from hirl.data.sources import decode as decoding
from hirl.data.sources.decode import DecodeError, decode


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def photo(height: int = 96, width: int = 128, mode: str = "RGB", blob: int = 8) -> Image.Image:
    small = Image.fromarray(noise(height // blob, width // blob))
    return small.resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def chw(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy()).permute(2, 0, 1)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "TGA"])
def test_colour_arrives_exactly(kind: str) -> None:
    array = noise(5, 7)
    pixels = decode(encoded(Image.fromarray(array), kind))
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels, chw(array))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_come_in_the_channels_asked_for(kind: str, channels: int) -> None:
    for mode in ("RGB", "L"):
        pixels = decode(encoded(photo(48, 64, mode), kind), channels=channels)
        assert pixels.shape == (channels, 48, 64)
        expected = np.asarray(photo(48, 64, "L"), dtype=float)
        assert abs(pixels.float().mean().item() - expected.mean()) < 6
        if mode == "L" and channels == 3 and kind not in ("AVIF", "WEBP"):
            assert torch.equal(pixels[0], pixels[1])


def test_black_and_white_bits() -> None:
    array = (noise(6, 6, 1)[:, :, 0] > 127) * np.uint8(255)
    pixels = decode(encoded(Image.fromarray(array).convert("1"), "PNG"))
    assert torch.equal(pixels, torch.from_numpy(array).expand(3, 6, 6))


def test_palette_gives_its_colours() -> None:
    array = np.zeros((2, 2, 3), dtype=np.uint8)
    array[0, 0], array[0, 1], array[1, 0] = (255, 0, 0), (0, 255, 0), (10, 20, 30)
    image = Image.fromarray(array).quantize(4)
    assert image.mode == "P"
    assert torch.equal(decode(encoded(image, "PNG")), chw(array))


def test_transparency_lies_over_white() -> None:
    array = np.zeros((1, 3, 4), dtype=np.uint8)
    array[0, :, 3] = (0, 255, 128)  # black, ever less transparent
    pixels = decode(encoded(Image.fromarray(array), "PNG"))
    assert pixels[:, 0, 0].tolist() == [255] * 3
    assert pixels[:, 0, 1].tolist() == [0] * 3
    assert pixels[:, 0, 2].tolist() == [127] * 3
    grey = Image.fromarray(array).convert("LA")
    assert torch.equal(decode(encoded(grey, "PNG")), pixels)


def test_transparent_palette_lies_over_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 200, 0, 0])
    image.putpixel((1, 0), 1)
    pixels = decode(encoded(image, "PNG", transparency=0))
    assert pixels[:, 0].T.tolist() == [[255, 255, 255], [200, 0, 0]]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_shows_the_right_colours(kind: str) -> None:
    red = Image.new("RGB", (16, 16), (220, 30, 30)).convert("CMYK")
    pixels = decode(encoded(red, kind)).float().mean((1, 2))
    assert pixels[0] > 200
    assert pixels[1:].max() < 50


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_not_clipped(kind: str) -> None:
    values = np.array([[0, 128, 257, 32768, 65535]], dtype=np.uint16)
    pixels = decode(encoded(Image.fromarray(values), kind))
    assert pixels.shape == (3, 1, 5)
    assert pixels[0, 0].tolist() == [0, 0, 1, 128, 255]


def test_sixteen_bit_colour_png() -> None:
    """Written by hand: Pillow has no mode for it."""
    values = np.array([[[0, 257 * 7, 65535]]], dtype=">u2")

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" + values.tobytes()))
    assert decode(data + chunk(b"IEND", b""))[:, 0, 0].tolist() == [0, 7, 255]


def test_sixteen_bit_colour_tiff() -> None:
    values = np.array([0, 257 * 7, 65535], dtype="<u2").tobytes()
    tags = [(256, 3, 1), (257, 3, 1), (258, 3, None), (259, 3, 1), (262, 3, 2), (273, 4, 8), (277, 3, 3), (279, 4, 6)]
    entries = b"".join(
        struct.pack("<HHII", tag, kind, 3, 14) if value is None else struct.pack("<HHII", tag, kind, 1, value)
        for tag, kind, value in tags
    )
    bits = struct.pack("<3H", 16, 16, 16)  # at byte 14, after the header and the one pixel
    data = b"II*\0" + struct.pack("<I", 20) + values + bits + struct.pack("<H", len(tags)) + entries + bytes(4)
    assert decode(data)[:, 0, 0].tolist() == [0, 7, 255]


def test_values_of_unknown_range_are_refused() -> None:
    floats = Image.fromarray(np.ones((2, 2), dtype=np.float32))
    with pytest.raises(DecodeError, match="no known range"):
        decode(encoded(floats, "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("kind", "shorter"), [("PNG", None), ("JPEG", None), ("JPEG", 20)])
def test_exif_orientation_is_undone(orientation: int, kind: str, shorter: int | None) -> None:
    image = photo(96, 128)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, kind, exif=exif)
    with Image.open(io.BytesIO(data)) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored))
    pixels = decode(data, shorter=shorter)
    if shorter is None:
        assert torch.equal(pixels, chw(expected))
    else:
        reduced = torch.nn.functional.interpolate(chw(expected).float()[None], pixels.shape[1:], mode="area")[0]
        assert min(pixels.shape[1:]) < 96
        assert (pixels.float() - reduced).abs().mean() < 3


@pytest.mark.parametrize("kind", ["TIFF", "WEBP", "AVIF"])
def test_orientation_of_other_kinds_is_undone_once(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo(96, 128), kind, exif=exif)
    with Image.open(io.BytesIO(data)) as stored:
        expected = ImageOps.exif_transpose(stored)
    assert expected.size == (96, 128)
    assert torch.equal(decode(data), chw(np.asarray(expected.convert("RGB"))))


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0garbage", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"])
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_exif_data_do_not_spoil_the_picture(exif: bytes) -> None:
    assert decode(encoded(photo(), "JPEG", exif=exif)).shape == (3, 96, 128)


def test_the_first_of_several_pictures_is_taken() -> None:
    for kind in ("MPO", "GIF", "TIFF"):
        pixels = decode(encoded(photo(), kind, save_all=True, append_images=[Image.new("RGB", (128, 96))]))
        assert pixels.shape == (3, 96, 128)
        assert (pixels.float() - chw(np.asarray(photo())).float()).abs().mean() < 20


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_full_size_jpeg_equals_pillow(progressive: bool, subsampling: int) -> None:
    data = encoded(photo(), "JPEG", quality=85, progressive=progressive, subsampling=subsampling)
    assert torch.equal(decode(data), chw(np.asarray(Image.open(io.BytesIO(data)))))


@pytest.mark.parametrize(
    ("shorter", "height"), [(None, 200), (400, 200), (101, 200), (100, 100), (75, 100), (50, 50), (25, 25), (7, 25)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_reduced_but_never_below_what_is_asked(shorter: int | None, height: int, channels: int) -> None:
    data = encoded(photo(200, 304, blob=40), "JPEG", quality=95, subsampling=0)  # smooth: reducing loses nothing
    pixels = decode(data, shorter=shorter, channels=channels)
    assert pixels.shape == (channels, height, 304 * height // 200)
    full = decode(data, channels=channels).float()[None]
    reduced = torch.nn.functional.interpolate(full, pixels.shape[1:], mode="bilinear", antialias=True)[0]
    assert (pixels.float() - reduced).abs().mean() < 1


@pytest.mark.parametrize("size", [(199, 301), (17, 33), (1, 1)])
def test_odd_sizes_are_not_rounded_below(size: tuple[int, int]) -> None:
    data = encoded(Image.fromarray(noise(*size)), "JPEG")
    for shorter in (1, 3, 8, 16, 24, 33, 66, 99, 100):
        got = min(decode(data, shorter=shorter).shape[1:])
        assert got >= min(shorter, *size)


@pytest.mark.parametrize(("size", "by"), [((200, 304), 8), ((204, 300), 4), ((202, 304), 2), ((199, 304), 1)])
def test_a_jpeg_is_reduced_by_what_divides_both_sides(size: tuple[int, int], by: int) -> None:
    """Its pixels then stand for equally many of the original each: nothing is stretched."""
    data = encoded(photo(*size), "JPEG")
    assert decode(data, shorter=8).shape[1:] == (size[0] // by, size[1] // by)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.9])
def test_a_file_cut_short_is_refused(kind: str, kept: float) -> None:
    data = encoded(Image.fromarray(noise(64, 64)), kind)
    with pytest.raises(DecodeError):
        decode(data[: int(len(data) * kept)])


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("shorter", [None, 20])
@pytest.mark.parametrize("missing", [2, 100, 1000])
def test_a_jpeg_cut_short_is_refused(progressive: bool, shorter: int | None, missing: int) -> None:
    data = encoded(photo(), "JPEG", quality=90, progressive=progressive)
    decode(data, shorter=shorter)
    with pytest.raises(DecodeError, match="damaged or truncated"):
        decode(data[:-missing], shorter=shorter)


def test_a_jpeg_cut_short_and_tidied_up_is_refused() -> None:
    data = encoded(photo(), "JPEG", quality=90)
    with pytest.raises(DecodeError, match="damaged or truncated"):
        decode(data[: len(data) // 2] + b"\xff\xd9")


def test_stray_bytes_in_a_jpeg_do_no_harm() -> None:
    data = encoded(photo(), "JPEG", quality=90)
    assert torch.equal(decode(data[:-2] + bytes(7) + data[-2:] + b"trailer"), decode(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "empty"), (b"not an image at all" * 50, "not an image"), (b"\xff\xd8\xff", "damaged|not an image")],
)
def test_what_is_no_image_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(data)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_random_damage_is_refused_or_decoded_but_nothing_else() -> None:
    draw = np.random.default_rng(0)
    for kind in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "TGA"):
        intact = encoded(photo(32, 32), kind)
        for _ in range(60):
            data = bytearray(intact)
            for place in draw.integers(0, len(data), 4):
                data[place] = draw.integers(0, 256)
            with suppress(DecodeError):
                assert decode(bytes(data), shorter=8).ndim == 3


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_unpacked(side: int) -> None:
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = b"IHDR" + head
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(head)) + body + struct.pack(">I", zlib.crc32(body))
    idat = b"IDAT" + zlib.compress(bytes(1000))
    data += struct.pack(">I", len(idat) - 4) + idat + struct.pack(">I", zlib.crc32(idat))
    with pytest.raises(DecodeError, match="exceed the limit of"):
        decode(data)


def test_the_limit_holds_when_pillow_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 99)
    with pytest.raises(DecodeError, match="10 x 10 pixels exceed the limit of 99"):
        decode(encoded(Image.new("RGB", (10, 10)), "PNG"))
