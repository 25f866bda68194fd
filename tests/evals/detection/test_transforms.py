"""Flips, sizes and crops of images, boxes and masks against a pixel-by-pixel reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hirl.evals.detection.transforms import Augmentation, Sample, crop, fitted, flip, resize_sample


@pytest.fixture
def sample(generator: torch.Generator) -> Sample:
    height, width = 13, 17
    image = torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8)
    boxes = torch.tensor([[2.0, 3.0, 9.0, 11.0], [0.0, 0.0, 17.0, 13.0], [14.5, 1.0, 16.0, 12.5]])
    masks = torch.stack([drawn(box, height, width) for box in boxes])
    return Sample(image, boxes, torch.tensor([1, 2, 1]), masks)


def drawn(box: Tensor, height: int, width: int) -> Tensor:
    """1 where a pixel's centre is inside the box."""
    x1, y1, x2, y2 = box.tolist()
    inside = [[x1 <= j + 0.5 < x2 and y1 <= i + 0.5 < y2 for j in range(width)] for i in range(height)]
    return torch.tensor(inside, dtype=torch.uint8)


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_flip(sample: Sample) -> None:
    flipped = flip(sample)
    height, width = sample.size
    assert flipped.masks is not None
    assert sample.masks is not None
    for i in range(height):
        for j in range(width):
            same(flipped.image[:, i, j], sample.image[:, i, width - 1 - j])
            same(flipped.masks[:, i, j], sample.masks[:, i, width - 1 - j])
    for mine, theirs in zip(flipped.boxes.tolist(), sample.boxes.tolist(), strict=True):
        corners = [(width - x, y) for x in theirs[::2] for y in theirs[1::2]]
        assert mine == [min(x for x, _ in corners), theirs[1], max(x for x, _ in corners), theirs[3]]
    twice = flip(flipped)
    same(twice.boxes, sample.boxes)
    same(twice.image, sample.image)


@pytest.mark.parametrize("size", [(26, 34), (7, 9), (13, 40), (50, 17), (13, 17)])
def test_resize(sample: Sample, size: tuple[int, int]) -> None:
    resized = resize_sample(sample, *size)
    (old_height, old_width), (height, width) = sample.size, size
    assert resized.size == size
    assert resized.masks is not None
    assert sample.masks is not None
    for i in range(height):
        for j in range(width):  # the old pixel under the new one's centre
            y, x = int((i + 0.5) * old_height / height), int((j + 0.5) * old_width / width)
            same(resized.masks[:, i, j], sample.masks[:, y, x])
    for mine, theirs in zip(resized.boxes.tolist(), sample.boxes.tolist(), strict=True):
        x1, y1, x2, y2 = theirs
        wanted = [x1 * width / old_width, y1 * height / old_height, x2 * width / old_width, y2 * height / old_height]
        assert mine == pytest.approx(wanted)
    same(resized.labels, sample.labels)


def test_resized_pixels_are_those_of_pillow(sample: Sample) -> None:
    import numpy as np
    from PIL import Image

    for height, width in ((26, 30), (6, 9)):
        mine = resize_sample(sample, height, width).image
        picture = Image.fromarray(sample.image.permute(1, 2, 0).numpy())
        theirs = torch.from_numpy(np.array(picture.resize((width, height), Image.Resampling.BILINEAR))).permute(2, 0, 1)
        assert int((mine.int() - theirs.int()).abs().max()) <= 1


def test_masks_follow_boxes_at_twice_the_size(sample: Sample) -> None:
    resized = resize_sample(sample, 26, 34)
    assert resized.masks is not None
    for box, mask in zip(resized.boxes[:2], resized.masks[:2], strict=True):  # the third has half pixels
        same(mask, drawn(box, 26, 34))


def test_crop(sample: Sample) -> None:
    top, left, height, width = 4, 6, 8, 9
    cut = crop(sample, top, left, height, width)
    assert sample.masks is not None
    assert cut.masks is not None
    wanted, labels, masks = [], [], []
    for box, label, mask in zip(sample.boxes.tolist(), sample.labels.tolist(), sample.masks, strict=True):
        x1, y1, x2, y2 = box
        inside = [
            min(max(x1 - left, 0), width),
            min(max(y1 - top, 0), height),
            min(max(x2 - left, 0), width),
            min(max(y2 - top, 0), height),
        ]
        if inside[2] - inside[0] >= 1 and inside[3] - inside[1] >= 1:
            wanted.append(inside)
            labels.append(label)
            masks.append(mask[top : top + height, left : left + width])
    assert len(wanted) == 2  # the third has half a pixel left
    assert cut.boxes.tolist() == wanted
    assert cut.labels.tolist() == labels
    same(cut.masks, torch.stack(masks))
    for i in range(height):
        for j in range(width):
            same(cut.image[:, i, j], sample.image[:, top + i, left + j])


def test_a_crop_may_leave_nothing(sample: Sample) -> None:
    cut = crop(Sample(sample.image, sample.boxes[:1], sample.labels[:1], None), 0, 10, 5, 5)
    assert cut.boxes.shape == (0, 4)
    assert cut.labels.shape == (0,)


@pytest.mark.parametrize(
    ("size", "short", "long", "wanted"),
    [
        ((480, 640), 800, 1333, (800, 1067)),
        ((640, 480), 800, 1333, (1067, 800)),
        ((300, 900), 800, 1333, (444, 1333)),  # the longer side is the limit
        ((800, 1333), 800, 1333, (800, 1333)),
    ],
)
def test_fitted(size: tuple[int, int], short: int, long: int, wanted: tuple[int, int]) -> None:
    assert fitted(size, short, long) == wanted


@pytest.mark.parametrize("crops", [False, True])
def test_augmentation(sample: Sample, crops: bool) -> None:
    augment = Augmentation((24, 32, 40), 80, crops)

    def draw(seed: int) -> Sample:
        return augment(sample, torch.Generator().manual_seed(seed))

    same(draw(1).image, draw(1).image)  # a function of the generator
    drawn_sizes = {draw(seed).size for seed in range(30)}
    assert {min(size) for size in drawn_sizes} <= {24, 32, 40}
    assert (len(drawn_sizes) > 3) == crops  # crops change the shape as well
    for seed in range(30):
        one = draw(seed)
        assert one.masks is not None
        assert one.masks.shape == (len(one.boxes), *one.size)
        assert (one.boxes >= 0).all()
        assert (one.boxes[:, 2] <= one.size[1] + 1e-4).all()
        assert (one.boxes[:, 3] <= one.size[0] + 1e-4).all()
