"""Training images: which, in which order, and what is drawn for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hirl.data.annotations.detection_folder import open_detection
from hirl.data.sources.image_set import BadImage
from hirl.evals.detection.samples import TestImages, TrainingSamples, read_sample
from hirl.evals.detection.transforms import Augmentation

Coco = Callable[..., Path]


def samples(folder: Path, seed: int = 0) -> TrainingSamples:
    images = open_detection(folder, "train", segment=True)
    return TrainingSamples(images, Augmentation((40, 48, 56, 64, 72), 200, crops=True), seed=seed, segment=True)


def drawn_sizes(row: TrainingSamples, epoch: int) -> list[tuple[int, int]]:
    """The sizes of the images of an epoch, which tell draws from each other."""
    count = len(row.images)
    return [row[epoch * count + place].sample.size for place in range(count)]


def test_crowds_are_left_out(coco: Coco) -> None:
    folder = coco(lambda document: document["annotations"][0].update(iscrowd=1))
    sample = read_sample(open_detection(folder, "train", segment=True), 0, segment=True)
    assert sample.labels.tolist() == [2]
    assert sample.boxes.shape == (1, 4)
    assert sample.masks is not None
    assert sample.masks.shape == (1, 56, 64)


def test_an_image_without_objects_is_a_sample(coco: Coco) -> None:
    sample = read_sample(open_detection(coco(images=4), "train", segment=True), 1, segment=True)
    assert sample.boxes.shape == (0, 4)
    assert sample.masks is not None
    assert sample.masks.shape == (0, 56, 64)


def test_boxes_are_within_the_image(coco: Coco) -> None:
    folder = coco(lambda document: document["annotations"][0].update(bbox=[-0.5, 10, 30, 46.7]))
    boxes = read_sample(open_detection(folder, "train", segment=True), 0, segment=False).boxes
    assert boxes[0].tolist() == pytest.approx([0, 10, 29.5, 56])


def test_every_epoch_has_all_images_in_an_order_of_its_own(coco: Coco) -> None:
    row = samples(coco(images=6))
    orders = []
    for epoch in range(4):
        seeds = [row[epoch * 6 + place].seed for place in range(6)]
        assert len(set(seeds)) == 6
        assert row._order is not None
        assert row._order[0] == epoch
        orders.append(row._order[1].tolist())
        assert sorted(orders[-1]) == list(range(6))
    assert len({tuple(order) for order in orders}) > 1


def test_draws_are_a_function_of_seed_epoch_and_image(coco: Coco) -> None:
    folder = coco(images=6)
    row, again, other = samples(folder), samples(folder), samples(folder, seed=1)
    for position in (9, 2, 9):  # in any order
        one, same = row[position], again[position]
        assert one.seed == same.seed
        assert torch.equal(one.sample.image, same.sample.image)
        assert torch.equal(one.sample.boxes, same.sample.boxes)
    assert drawn_sizes(row, 0) != drawn_sizes(other, 0)
    by_image: dict[int, set[tuple[int, int]]] = {}
    for epoch in range(6):
        for place in range(6):
            size = row[epoch * 6 + place].sample.size
            assert row._order is not None
            by_image.setdefault(int(row._order[1][place]), set()).add(size)
    assert all(len(sizes) > 1 for sizes in by_image.values())  # another view in another epoch


def test_test_images_have_the_test_size(coco: Coco) -> None:
    images = open_detection(coco(), "train", segment=True)
    place, pixels = TestImages(images, [1], short=112, long=200)[0]
    assert place == 1
    assert pixels.shape == (3, 112, 128)


def test_an_image_that_breaks_later_is_named(coco: Coco) -> None:
    folder = coco()
    images = open_detection(folder, "train", segment=True)
    (folder / "images" / "1.png").write_bytes(b"")
    with pytest.raises(BadImage, match=r"Image .*1\.png"):
        images.read(0)
