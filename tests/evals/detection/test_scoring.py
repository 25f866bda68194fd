"""Average precision is what pycocotools gives when called directly; masks land where they belong."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor

from hirl.data.annotations.annotated_images import DetectionSet
from hirl.data.annotations.detection_folder import open_detection
from hirl.data.annotations.segmentations import encoded, pixels
from hirl.evals.detection.predictions import Prediction, results
from hirl.evals.detection.regions import Detections, paste
from hirl.evals.detection.scoring import Kind, average_precision

from ...drawn_set import Document

Coco = Callable[..., Path]


def with_crowd(document: Document) -> None:
    """One crowd, one large object and one image without objects among the rest."""
    document["annotations"][0] |= {"iscrowd": 1, "segmentation": {"size": [200, 220], "counts": [100, 9000, 34900]}}
    document["annotations"][3]["area"] = 10_000


@pytest.fixture
def folder(coco: Coco) -> Path:
    return coco(with_crowd, images=6, size=(220, 200), objects=5)


def jittered(images: DetectionSet, generator: torch.Generator) -> list[Prediction]:
    """Boxes and masks near the true ones, some with another class, some repeated, at random scores."""
    found: list[Prediction] = []
    for image in images.images:
        for instance in (*image.instances, *image.instances[:2]):
            noise = 3 * torch.randn(4, generator=generator)
            x, y, width, height = (torch.tensor(instance.box) + noise).tolist()
            wrong = torch.rand((), generator=generator) < 0.2
            label = 3 - instance.label if wrong else instance.label
            mask = torch.zeros(image.height, image.width)
            mask[max(0, int(y)) : int(y + height), max(0, int(x)) : int(x + width)] = 1
            found.append(
                {
                    "image_id": image.id,
                    "category_id": images.categories[label - 1].id,
                    "bbox": [x, y, width, height],
                    "score": float(torch.rand((), generator=generator)),
                    "segmentation": encoded(mask),
                }
            )
    return found


def directly(file: Path, predictions: list[dict[str, Any]], kind: Kind) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        evaluation = COCOeval(truth, truth.loadRes(predictions), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_figures_are_those_of_pycocotools(folder: Path, kind: Kind, generator: torch.Generator, tmp_path: Path) -> None:
    images = open_detection(folder, "train", segment=True)
    predictions = jittered(images, generator)
    mine = average_precision(images, predictions, kind)
    file = tmp_path / "predictions.json"
    other = "segmentation" if kind == "bbox" else "bbox"
    file.write_text(json.dumps([{key: value for key, value in one.items() if key != other} for one in predictions]))
    theirs = directly(folder / "annotations/instances_train.json", json.loads(file.read_text()), kind)
    assert list(mine.figures.values()) == [None if value < 0 else value for value in theirs.stats[:6]]
    precision = theirs.eval["precision"]
    assert mine.classes == {
        "box": precision[:, :, 0, 0, -1].mean(),
        "tent": precision[:, :, 1, 0, -1].mean(),
    }
    value = mine.figures["AP"]
    assert value is not None
    assert 0.05 < value < 0.9  # the predictions are neither all right nor all wrong


def test_perfect_predictions_score_one(folder: Path) -> None:
    images = open_detection(folder, "train", segment=True)
    predictions: list[Prediction] = [
        {
            "image_id": image.id,
            "category_id": images.categories[instance.label - 1].id,
            "bbox": list(instance.box),
            "score": 1.0,
            "segmentation": encoded(pixels(instance.segmentation, image.width, image.height)),
        }
        for image in images.images
        for instance in image.instances
        if instance.segmentation is not None
    ]
    for kind in ("bbox", "segm"):
        figures = average_precision(images, predictions, kind).figures
        assert figures["AP"] == pytest.approx(1)
        assert figures["AP50"] == pytest.approx(1)


def test_no_prediction_scores_zero(folder: Path) -> None:
    images = open_detection(folder, "train", segment=True)
    nothing = average_precision(images, [], "bbox")
    assert nothing.figures["AP"] == 0
    assert set(nothing.classes.values()) == {0.0}


def test_an_annotation_with_id_0_counts(coco: Coco) -> None:
    """pycocotools itself takes it for unmatched."""
    images = open_detection(coco(lambda document: document["annotations"][0].update(id=0)), "train", segment=True)
    predictions = [
        {
            "image_id": image.id,
            "category_id": images.categories[instance.label - 1].id,
            "bbox": list(instance.box),
            "score": 1.0,
        }
        for image in images.images
        for instance in image.instances
    ]
    assert average_precision(images, predictions, "bbox").figures["AP"] == pytest.approx(1)


def slow_paste(mask: Tensor, box: Tensor, height: int, width: int) -> Tensor:
    """Each pixel's centre in the box is looked up in the mask, between the centres of its cells by interpolation.

    Around the mask there are zeros, as in detectron2.
    """
    x1, y1, x2, y2 = box.tolist()
    size = mask.shape[0]
    placed = torch.zeros(height, width, dtype=torch.bool)
    for i in range(height):
        for j in range(width):
            if not (x1 <= j + 0.5 <= x2 and y1 <= i + 0.5 <= y2):
                continue
            x, y = (j + 0.5 - x1) / (x2 - x1) * size - 0.5, (i + 0.5 - y1) / (y2 - y1) * size - 0.5
            total = 0.0
            for row in (int(y // 1), int(y // 1) + 1):
                for column in (int(x // 1), int(x // 1) + 1):
                    if 0 <= row < size and 0 <= column < size:
                        total += float(mask[row, column]) * (1 - abs(y - row)) * (1 - abs(x - column))
            placed[i, j] = total >= 0.5
    return placed


@pytest.mark.parametrize("box", [[3.0, 2.0, 15.0, 11.0], [-4.5, -2.2, 9.3, 20.1], [5.1, 5.2, 6.4, 6.0], [0, 0, 20, 14]])
def test_masks_are_pasted_in_their_boxes(box: list[float], generator: torch.Generator) -> None:
    mask = torch.rand(7, 7, generator=generator)
    assert torch.equal(paste(mask, torch.tensor(box), 14, 20), slow_paste(mask, torch.tensor(box), 14, 20))


def test_masks_of_an_ideal_head_are_pasted_closely() -> None:
    """A head of 14 × 14 whose every cell has the share of it that the object covers: discs, whose boxes touch them."""
    overlaps = []
    for radius in (20.3, 33.7, 51.2):
        for x, y in ((60.0, 60.0), (61.4, 58.7)):
            pixels_at = torch.arange(120) + 0.5
            truth = (pixels_at[None, :] - x) ** 2 + (pixels_at[:, None] - y) ** 2 <= radius**2
            left, top, right, bottom = x - radius, y - radius, x + radius, y + radius
            cells = torch.linspace(0, 1, 14 * 40 + 1)[:-1] + 1 / (14 * 80)
            columns, rows = left + cells * (right - left), top + cells * (bottom - top)
            covered = ((columns[None, :] - x) ** 2 + (rows[:, None] - y) ** 2 <= radius**2).float()
            mask = covered.view(14, 40, 14, 40).mean((1, 3))
            placed = paste(mask, torch.tensor([left, top, right, bottom]), 120, 120)
            overlaps.append(float((placed & truth).sum() / (placed | truth).sum()))
    assert sum(overlaps) / len(overlaps) > 0.985, overlaps  # with borders that go on outside, 0.975


def test_a_box_without_area_has_no_mask() -> None:
    assert not paste(torch.ones(3, 3), torch.tensor([4.0, 4.0, 4.0, 9.0]), 10, 10).any()
    assert not paste(torch.ones(3, 3), torch.tensor([12.0, 4.0, 15.0, 9.0]), 10, 10).any()


def test_detections_return_to_the_image_they_are_of(coco: Coco) -> None:
    images = open_detection(coco(), "train", segment=True)
    found = Detections(
        torch.tensor([[10.0, 10.0, 40.0, 60.0]]), torch.tensor([0.9]), torch.tensor([2]), torch.ones(1, 4, 4)
    )
    (one,) = results(found, (112, 128), images.images[0], images)  # the image is 64 × 56 pixels
    assert one["bbox"] == [5, 5, 15, 25]
    assert (one["image_id"], one["category_id"]) == (1, 7)
    mask = pixels(one["segmentation"], 64, 56)
    assert mask[6:29, 6:19].all()
    assert not mask[:5].any()
    assert not mask[30:].any()
    assert not mask[:, :5].any()
    assert not mask[:, 20:].any()
