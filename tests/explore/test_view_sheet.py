"""The contact sheet of views."""

from __future__ import annotations

import numpy as np
import pytest

from hirl.data.sources import ImageSet, open_images
from hirl.data.views import BlockMask, View
from hirl.explore.view_sheet import view_sheet
from hirl.methods import IBOT, SwAV


@pytest.fixture
def images() -> ImageSet:
    colours = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200]], dtype=np.uint8)
    return open_images(np.tile(colours[:, :, None, None], (1, 1, 32, 32)))


def test_rows_are_images_and_columns_views(images: ImageSet) -> None:
    sheet = np.asarray(view_sheet(images, (View(size=32),) * 2, rows=3, tile=64))
    height, width, _ = sheet.shape
    assert height > 3 * 64
    assert width > 3 * 64
    last = -1
    for colour in ((200, 30, 30), (30, 200, 30), (30, 30, 200)):
        hits = (sheet == colour).all(-1)
        ys, xs = np.nonzero(hits)
        assert ys.max() - ys.min() < 64
        assert xs.max() - xs.min() > 3 * 64 - 8  # all three columns show this image, and nothing but it
        assert ys.min() > last
        last = int(ys.max())


def test_masked_patches_are_blank(images: ImageSet) -> None:
    def coloured(mask: BlockMask | None) -> int:
        sheet = np.asarray(view_sheet(images, (View(size=32, mask=mask),), rows=[0], tile=64))
        return int((sheet == (200, 30, 30)).all(-1).sum())

    half = BlockMask(patch=4, probability=1.0, ratio=0.5, spread=0.0)
    assert coloured(half) < 0.9 * coloured(None)


def test_the_same_call_gives_the_same_sheet(images: ImageSet) -> None:
    views = IBOT(backbone_args={"img_size": 32, "patch_size": 8}).views(32)
    one, other = (view_sheet(images, views, title="iBOT", seed=4) for _ in range(2))
    assert one.tobytes() == other.tobytes()
    assert one.tobytes() != view_sheet(images, views, title="iBOT", seed=5).tobytes()
    assert one.tobytes() != view_sheet(images, views, title="iBOT", seed=4, epoch=1).tobytes()


@pytest.mark.parametrize("rows", [0, [3], [-1], []])
def test_rows_that_are_not_there_are_named(images: ImageSet, rows: int | list[int]) -> None:
    with pytest.raises(ValueError, match="rows is"):
        view_sheet(images, SwAV().views(32), rows=rows)
