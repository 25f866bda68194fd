"""What a trained detector finds in the test images, in COCO's result format."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader

from hirl import ranks
from hirl.data.annotations.annotated_images import AnnotatedImage, DetectionSet
from hirl.data.annotations.segmentations import encoded
from hirl.data.views.normalisation import Normalisation
from hirl.evals.detection.detector import Detector, float_images, padded
from hirl.evals.detection.regions import Detections, paste
from hirl.evals.detection.samples import TestImages
from hirl.evals.detection.schedule import Schedule
from hirl.signals import shielded
from hirl.terminal.progress import Progress, no_progress

Prediction = dict[str, Any]  # image_id, category_id, bbox, score and, with masks, segmentation


@torch.no_grad()
def predict(
    detector: Detector,
    images: DetectionSet,
    schedule: Schedule,
    *,
    fabric: Fabric,
    normalisation: Normalisation,
    workers: int = 0,
    progress: Progress = no_progress,
) -> list[Prediction]:
    """The detections in all images, by image id and falling score. Each process takes its share and gets the result."""
    detector.eval()
    places = range(fabric.global_rank, len(images), fabric.world_size)
    shown = TestImages(images, places, short=schedule.short_sides[-1], long=schedule.long_side)
    loader: DataLoader[tuple[int, Tensor]] = DataLoader(shown, batch_size=None, num_workers=workers)
    mine: list[Prediction] = []
    for done, (place, image) in enumerate(shielded(loader), start=1):
        batch = float_images([image.to(fabric.device)], normalisation.mean, normalisation.std)
        size = (image.shape[1], image.shape[2])
        with fabric.autocast():
            found, _ = detector(padded(batch, detector.multiple), [size])
        mine += results(found[0], size, images.images[place], images)
        progress("detection: test", done, len(places))
    joined = [one for part in ranks.world().gather_objects(mine) for one in part]
    return sorted(joined, key=lambda one: one["image_id"])  # stable: the score still falls within an image


def results(found: Detections, size: tuple[int, int], image: AnnotatedImage, images: DetectionSet) -> list[Prediction]:
    """Detections at `size` (height, width) in the coordinates of the image itself."""
    factors = torch.tensor([image.width / size[1], image.height / size[0]] * 2)
    boxes = found.boxes.float().cpu() * factors
    masks = [None] * len(boxes) if found.masks is None else list(found.masks.cpu())
    listed = []
    for box, score, label, mask in zip(boxes, found.scores.tolist(), found.labels.tolist(), masks, strict=True):
        x1, y1, x2, y2 = box.tolist()
        one: Prediction = {
            "image_id": image.id,
            "category_id": images.categories[label - 1].id,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "score": score,
        }
        if mask is not None:
            one["segmentation"] = encoded(paste(mask, box, image.height, image.width))
        listed.append(one)
    return listed
