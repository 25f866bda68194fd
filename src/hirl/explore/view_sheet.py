"""A contact sheet of views: one row per image, one column per view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.skipped import Skipped
from hirl.data.views import View
from hirl.data.views.draws import Ints
from hirl.data.views.normalisation import Normalisation
from hirl.data.views.render import Batch, ViewRenderer
from hirl.explore.figure_style import FAINT, INK, PAPER

_HIDDEN = (226, 224, 217)  # a masked patch
_GAP, _MARGIN, _HEADER = 8, 20, 22
SMALLEST_TILE = 8  # pixels


def view_sheet(
    images: ImageSet,
    views: tuple[View, ...],
    *,
    rows: int | Sequence[int] = 6,
    seed: int = 0,
    epoch: int = 0,
    tile: int = 112,
    title: str = "",
    skipped: Skipped | None = None,
) -> Image.Image:
    """Draw the original and the views of each image: those that a `Loader` with this seed gives in this epoch.

    Args:
        images: The images.
        views: The views of a method.
        rows: The number of images, spread over the set, or their indices.
        seed: The seed of the loader.
        epoch: The epoch of the loader.
        tile: The side of the largest view on the sheet in pixels; smaller views are drawn in proportion. With the
            largest view's own size, all views are drawn pixel by pixel. Masked patches are blank.
        title: The heading.
        skipped: Records the images that could not be read and were replaced.
    """
    if tile < SMALLEST_TILE:
        raise ValueError(f"tile is {tile}, but must be at least {SMALLEST_TILE} pixels")
    indices = _indices(images, rows)
    batch = _rendered(images, views, indices, seed, epoch, Skipped() if skipped is None else skipped)
    largest = max(view.size for view in views)
    sides = [tile] + [max(SMALLEST_TILE, round(tile * view.size / largest)) for view in views]
    lefts = np.cumsum([_MARGIN, tile + 2 * _GAP, *(side + _GAP for side in sides[1:])])
    top = _MARGIN + _HEADER + (30 if title else 0)
    sheet = Image.new(
        "RGB", (int(lefts[-1]) - _GAP + _MARGIN, top + len(indices) * (tile + _GAP) - _GAP + _MARGIN), PAPER
    )
    pen = ImageDraw.Draw(sheet)
    if title:
        pen.text((_MARGIN, _MARGIN - 4), title, INK, ImageFont.load_default(20))
    for left, side, label in zip(lefts, sides, _labels(views), strict=False):
        pen.text((int(left) + side // 2, top - 7), label, FAINT, ImageFont.load_default(12), anchor="ms")
    for row, index in enumerate(batch.index.tolist()):
        y = top + row * (tile + _GAP)
        columns = [_original(images, index, tile), *(_picture(view[row]) for view in batch.views)]
        for column, picture in enumerate(columns):
            mask = batch.masks[column - 1] if column else None
            framed = _framed(picture, sides[column], None if mask is None else mask[row])
            sheet.paste(framed, (int(lefts[column]), y + (tile - sides[column]) // 2), _rounded(sides[column]))
    return sheet


def _indices(images: ImageSet, rows: int | Sequence[int]) -> Ints:
    if isinstance(rows, int):
        if rows < 1:
            raise ValueError(f"rows is {rows}, but must be at least 1")
        return np.unique(np.linspace(0, len(images) - 1, min(rows, len(images))).round().astype(np.int64))
    indices = np.array(rows, dtype=np.int64)
    if len(indices) == 0 or indices.min() < 0 or indices.max() >= len(images):
        raise ValueError(f"rows is {list(rows)}, but indices of {images.name} must be from 0 to {len(images) - 1}")
    return indices


def _rendered(
    images: ImageSet, views: tuple[View, ...], indices: Ints, seed: int, epoch: int, skipped: Skipped
) -> Batch:
    """The views of these images in [0, 1], without the loader's normalisation."""
    plain = Normalisation((0.0,) * images.channels, (1.0,) * images.channels)
    renderer = ViewRenderer(images, views, seed=seed, normalisation=plain, device=torch.device("cpu"), strict=False)
    piece = renderer.render_in_worker(indices, epoch)
    for bad in piece.bad:
        skipped.add(bad)
    return renderer.finish_on_device(piece, epoch)


def _labels(views: tuple[View, ...]) -> list[str]:
    """The headings of the columns; for small views only the number, to save space."""
    largest = max(view.size for view in views)
    return ["original", *(f"view {n}" if v.size == largest else f"{n}" for n, v in enumerate(views, start=1))]


def _picture(view: Tensor) -> Image.Image:
    """(C, H, W) floats in [0, 1]"""
    pixels = view.clamp(0, 1).mul(255).round().to(torch.uint8).expand(3, -1, -1)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _original(images: ImageSet, index: int, tile: int) -> Image.Image:
    """The uncropped image within a square of `tile`."""
    picture = _picture(images.read(index, shorter=tile) / 255)
    scale = tile / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    square = Image.new("RGB", (tile, tile), PAPER)
    square.paste(picture, ((tile - size[0]) // 2, (tile - size[1]) // 2))
    return square


def _framed(picture: Image.Image, side: int, mask: Tensor | None) -> Image.Image:
    picture = picture.resize((side, side), Image.Resampling.LANCZOS)
    if mask is not None:
        hidden = Image.fromarray(mask.to(torch.uint8).mul(255).numpy()).resize((side, side), Image.Resampling.NEAREST)
        picture.paste(_HIDDEN, (0, 0, side, side), hidden)
    return picture


def _rounded(side: int) -> Image.Image:
    """A mask with rounded corners, drawn enlarged and then reduced to smooth them."""
    stencil = Image.new("L", (4 * side, 4 * side), 0)
    ImageDraw.Draw(stencil).rounded_rectangle((0, 0, 4 * side - 1, 4 * side - 1), 4 * max(2, side // 22), 255)
    return stencil.resize((side, side), Image.Resampling.LANCZOS)
