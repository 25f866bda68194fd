"""Average precision, by pycocotools: what COCO calls AP, AP50, AP75, by size, and per class."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hirl.data.annotations.annotated_images import AnnotatedImage, DetectionSet, Instance
from hirl.evals.detection.predictions import Prediction

Kind = Literal["bbox", "segm"]
# Where pycocotools puts each figure among its twelve.
FIGURES = {"AP": 0, "AP50": 1, "AP75": 2, "AP small": 3, "AP medium": 4, "AP large": 5}


@dataclass(frozen=True)
class Precision:
    """Shares of 1; None where there is no object to find."""

    figures: dict[str, float | None]  # AP, AP50, AP75, AP small, AP medium, AP large
    classes: dict[str, float | None]  # AP by the name of the category


def average_precision(images: DetectionSet, predictions: Sequence[Prediction], kind: Kind) -> Precision:
    """Figures of predicted boxes (bbox) or masks (segm)."""
    from pycocotools.cocoeval import COCOeval

    # With a box beside it, a mask's size would be that of the box.
    without = "bbox" if kind == "segm" else "segmentation"
    listed = [{key: value for key, value in one.items() if key != without} for one in predictions]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints on the way
        truth = _index(truth_document(images))
        found = truth.loadRes(listed) if listed else _index(truth.dataset | {"annotations": []})
        evaluation = COCOeval(truth, found, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    stats = {name: float(evaluation.stats[place]) for name, place in FIGURES.items()}
    figures = {name: None if value < 0 else value for name, value in stats.items()}  # -1: there is nothing to find
    # precision: (overlaps, recalls, categories, sizes, numbers of detections)
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    names = {category.id: category.name for category in images.categories}
    classes: dict[str, float | None] = {}
    for place, key in enumerate(evaluation.params.catIds):
        values = precision[:, :, place]
        values = values[values > -1]
        name = names[key] if names[key] not in classes else f"{names[key]} (id {key})"
        classes[name] = float(np.mean(values)) if values.size else None
    return Precision(figures, classes)


def truth_document(images: DetectionSet) -> dict[str, Any]:
    """The set as a COCO file. Annotations are numbered from 1: pycocotools takes id 0 for no match."""
    numbered = ((image, instance) for image in images.images for instance in image.instances)
    return {
        "images": [{"id": one.id, "width": one.width, "height": one.height} for one in images.images],
        "categories": [{"id": one.id, "name": one.name} for one in images.categories],
        "annotations": [
            _annotation(number, image, instance, images) for number, (image, instance) in enumerate(numbered, start=1)
        ],
    }


def _annotation(number: int, image: AnnotatedImage, instance: Instance, images: DetectionSet) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": number,
        "image_id": image.id,
        "category_id": images.categories[instance.label - 1].id,
        "bbox": list(instance.box),
        "area": instance.area,
        "iscrowd": int(instance.crowd),
    }
    if instance.segmentation is not None:
        entry["segmentation"] = instance.segmentation
    return entry


def _index(document: dict[str, Any]) -> Any:
    from pycocotools.coco import COCO

    coco = COCO()
    coco.dataset = document
    coco.createIndex()
    return coco
