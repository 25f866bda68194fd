"""A contact sheet: what the network will see, one row an image, one column a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.skipped import Skipped
from hirl.data.views import View
from hirl.data.views.render import Normalisation, ViewRenderer

if TYPE_CHECKING:
    from PIL import Image

_PAPER, _INK, _FAINT = (250, 249, 246), (38, 40, 46), (128, 130, 138)
_HIDDEN = (226, 224, 217)  # a masked patch
_GAP, _MARGIN, _HEADER = 8, 20, 22


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
    """The views of `rows` images, spread over the set, or of those whose indices are given; save it as a PNG.

    They are the very views a Loader of this seed gives in this epoch. Local views are drawn smaller, in proportion;
    masked patches are blank. `skipped` gets to know of images that could not be read and were replaced.
    """
    from PIL import Image, ImageDraw, ImageFont

    if isinstance(rows, int):
        if rows < 1:
            raise ValueError(f"rows is {rows}, but a sheet shows at least 1 image.")
        indices = np.unique(np.linspace(0, len(images) - 1, min(rows, len(images))).round().astype(np.int64))
    else:
        indices = np.array(rows, dtype=np.int64)
        if len(indices) == 0 or indices.min() < 0 or indices.max() >= len(images):
            raise ValueError(f"rows is {list(rows)}, but indices of {images.name} go from 0 to {len(images) - 1}.")
    plain = Normalisation((0.0,) * images.channels, (1.0,) * images.channels)
    renderer = ViewRenderer(images, views, seed=seed, normalisation=plain, device=torch.device("cpu"), strict=False)
    piece = renderer.begin(indices, epoch)
    for bad in piece.bad:
        (Skipped() if skipped is None else skipped).add(bad)
    batch = renderer.finish(piece, epoch)

    largest = max(view.size for view in views)
    sides = [tile] + [max(24, round(tile * view.size / largest)) for view in views]
    lefts = np.cumsum([_MARGIN, tile + 2 * _GAP, *(side + _GAP for side in sides[1:])])
    top = _MARGIN + _HEADER + (30 if title else 0)
    sheet = Image.new(
        "RGB", (int(lefts[-1]) - _GAP + _MARGIN, top + len(indices) * (tile + _GAP) - _GAP + _MARGIN), _PAPER
    )
    pen = ImageDraw.Draw(sheet)
    if title:
        pen.text((_MARGIN, _MARGIN - 4), title, _INK, ImageFont.load_default(20))
    for left, side, label in zip(lefts, sides, _labels(views), strict=False):
        pen.text((int(left) + side // 2, top - 7), label, _FAINT, ImageFont.load_default(12), anchor="ms")
    for row, index in enumerate(batch.index.tolist()):
        y = top + row * (tile + _GAP)
        columns = [_original(images, index, tile), *(_picture(view[row]) for view in batch.views)]
        for column, picture in enumerate(columns):
            mask = batch.masks[column - 1] if column else None
            framed = _framed(picture, sides[column], None if mask is None else mask[row])
            sheet.paste(framed, (int(lefts[column]), y + (tile - sides[column]) // 2), _rounded(sides[column]))
    return sheet


def _labels(views: tuple[View, ...]) -> list[str]:
    """original, then views by number; the smaller ones by number and size alone, for there is little room."""
    largest = max(view.size for view in views)
    return ["original", *(f"view {n}" if v.size == largest else f"{n}" for n, v in enumerate(views, start=1))]


def _picture(view: Tensor) -> Image.Image:
    """(C, H, W) floats in [0, 1]"""
    from PIL import Image

    pixels = view.clamp(0, 1).mul(255).round().to(torch.uint8).expand(3, -1, -1)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _original(images: ImageSet, index: int, tile: int) -> Image.Image:
    """The whole image within a square of `tile`."""
    from PIL import Image

    picture = _picture(images.read(index, shorter=tile) / 255)
    scale = tile / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    square = Image.new("RGB", (tile, tile), _PAPER)
    square.paste(picture, ((tile - size[0]) // 2, (tile - size[1]) // 2))
    return square


def _framed(picture: Image.Image, side: int, mask: Tensor | None) -> Image.Image:
    from PIL import Image

    picture = picture.resize((side, side), Image.Resampling.LANCZOS)
    if mask is not None:
        hidden = Image.fromarray(mask.to(torch.uint8).mul(255).numpy()).resize((side, side), Image.Resampling.NEAREST)
        picture.paste(_HIDDEN, (0, 0, side, side), hidden)
    return picture


def _rounded(side: int) -> Image.Image:
    """A stencil with soft corners, drawn large and reduced so that the corners are smooth."""
    from PIL import Image, ImageDraw

    stencil = Image.new("L", (4 * side, 4 * side), 0)
    ImageDraw.Draw(stencil).rounded_rectangle((0, 0, 4 * side - 1, 4 * side - 1), 4 * max(2, side // 22), 255)
    return stencil.resize((side, side), Image.Resampling.LANCZOS)
