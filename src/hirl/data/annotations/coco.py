"""COCO annotation files (`instances_*.json`): read and checked before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hirl.data.annotations.annotated_images import (
    AnnotatedImage,
    Box,
    Broken,
    Category,
    DetectionSet,
    Faults,
    Instance,
    image_size,
    is_number,
)
from hirl.data.annotations.segmentations import check_segmentation

SECTIONS = ("images", "annotations", "categories")
TOLERANCE = 1.0  # pixels by which boxes of COCO itself reach over the border
Document = dict[str, list[Any]]


def read_coco(document: Document, file: Path, folder: Path, *, segment: bool, channels: int = 3) -> DetectionSet:
    """The images of the annotation `file`, which lie in `folder`. Entries that break a rule are dropped and listed.

    With `segment` an object needs a valid mask as well; without it masks are not read.
    """
    categories = _categories(document["categories"], file)
    faults = Faults(str(file))
    images = _images(document["images"], folder, faults)
    if segment and document["annotations"] and not any(_get(one, "segmentation") for one in document["annotations"]):
        raise ValueError(f"{str(file)!r} has boxes but no masks: set detection.segment to false to score boxes alone")
    objects = _objects(document["annotations"], images, categories, faults, segment=segment)
    kept = [image for image in images.values() if image is not None]
    complete = [replace(image, instances=tuple(objects[image.id])) for image in kept]
    return DetectionSet(str(file), complete, categories, faults, channels=channels)


def read_document(file: Path) -> Document:
    """The file's three lists."""
    try:
        document = json.loads(file.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is not valid JSON, or is cut short ({error}): fetch it again") from error
    if not isinstance(document, dict):
        raise ValueError(f"{str(file)!r} is not a COCO file: it holds a {type(document).__name__}, not an object")
    for section in SECTIONS:
        if not isinstance(document.get(section), list):
            raise ValueError(f"{str(file)!r} is not a COCO file: it has no list of {section}")
    return document


def _categories(entries: list[Any], file: Path) -> list[Category]:
    """Of these, none can be dropped: it is not known which boxes would go with it."""
    found: dict[int, Category] = {}
    for place, entry in enumerate(entries):
        key, name = _get(entry, "id"), _get(entry, "name")
        if not _is_integer(key) or not isinstance(name, str):
            raise ValueError(f"{str(file)!r}: category {place} must have a whole number as id and a name")
        if key in found:
            raise ValueError(
                f"{str(file)!r}: category id {key} is both {found[key].name!r} and {name!r}; ids are unique"
            )
        found[key] = Category(key, name)
    if not found:
        raise ValueError(f"{str(file)!r} has no categories, so its boxes have no classes")
    return list(found.values())


def _images(entries: list[Any], folder: Path, faults: Faults) -> dict[int, AnnotatedImage | None]:
    """By id; None stands for an image that was dropped, whose annotations go with it."""
    found: dict[int, AnnotatedImage | None] = {}
    for place, entry in enumerate(entries):
        key = _get(entry, "id")
        try:
            image = _image(entry, key, folder, found)
        except Broken as fault:
            faults.add(f"image id {key}" if _is_integer(key) else f"image {place}", fault)
            if _is_integer(key):
                found.setdefault(key, None)
        else:
            found[image.id] = image
    return found


def _image(entry: Any, key: Any, folder: Path, found: Mapping[int, AnnotatedImage | None]) -> AnnotatedImage:
    name, width, height = (_get(entry, part) for part in ("file_name", "width", "height"))
    if not _is_integer(key) or not isinstance(name, str) or not name:
        raise Broken("image without id or file name", "must have a whole number as id and a file_name")
    if key in found:
        raise Broken("duplicate image id", f"is used again, by {name!r}; ids are unique")
    if not (_is_integer(width) and _is_integer(height) and width > 0 and height > 0):
        raise Broken("image without size", f"is {width} × {height}, but width and height must be at least 1")
    file, (found_width, found_height) = folder / name, image_size(folder / name)
    if (found_width, found_height) != (width, height):
        why = f"is {width} × {height} by its annotations, but {file} is {found_width} × {found_height}"
        raise Broken("image of another size", why)
    return AnnotatedImage(key, file, width, height, ())


def _objects(
    entries: list[Any],
    images: Mapping[int, AnnotatedImage | None],
    categories: list[Category],
    faults: Faults,
    *,
    segment: bool,
) -> dict[int, list[Instance]]:
    """The instances per image id."""
    labels = {category.id: place for place, category in enumerate(categories, start=1)}
    objects: dict[int, list[Instance]] = {key: [] for key in images}
    used: set[int] = set()
    for place, entry in enumerate(entries):
        key, image_id = _get(entry, "id"), _get(entry, "image_id")
        what = f"annotation id {key}" if _is_integer(key) else f"annotation {place}"
        try:
            if not _is_integer(key):
                raise Broken("annotation without id", "must have a whole number as id")
            if key in used:
                raise Broken("duplicate annotation id", f"is used again, for image id {image_id!r}; ids are unique")
            used.add(key)
            if not _is_integer(image_id) or image_id not in images:
                raise Broken("unknown image", f"belongs to image id {image_id!r}, which is not among the images")
            image = images[image_id]
            if image is not None:
                objects[image_id].append(_instance(entry, image, labels, what, faults, segment=segment))
        except Broken as fault:
            faults.add(what, fault)
    return objects


def _instance(
    entry: dict[str, Any], image: AnnotatedImage, labels: Mapping[int, int], what: str, faults: Faults, *, segment: bool
) -> Instance:
    category: Any = entry.get("category_id")
    if not _is_integer(category) or category not in labels:
        raise Broken("unknown category", f"has category id {category!r}, which is not among the categories")
    box = check_box(entry.get("bbox"), image, what, faults)
    segmentation = entry.get("segmentation") if segment else None
    if segment:
        segmentation = check_segmentation(segmentation, image, what, faults)
    area: Any = entry.get("area")
    area = float(area) if is_number(area) and area > 0 else box[2] * box[3]
    return Instance(entry["id"], labels[category], box, area, bool(entry.get("iscrowd")), segmentation)


def check_box(box: Any, image: AnnotatedImage, what: str, faults: Faults) -> Box:
    """The box (x, y, width, height), cut to the image where it reaches far over its border; raises Broken."""
    if not (isinstance(box, list | tuple) and len(box) == 4 and all(map(is_number, box))):
        raise Broken("box that is not four numbers", f"has the box {box!r}, but a box is x, y, width, height")
    x, y, w, h = map(float, box)
    width, height = image.width, image.height
    shown = "[" + ", ".join(f"{number:g}" for number in (x, y, w, h)) + "]"
    if w <= 0 or h <= 0:
        raise Broken("box without area", f"has the box {shown}, whose width and height must be above 0")
    if x >= width or y >= height or x + w <= 0 or y + h <= 0:
        raise Broken(
            "box outside its image", f"has the box {shown}, which lies outside its image of {width} × {height}"
        )
    if x < -TOLERANCE or y < -TOLERANCE or x + w > width + TOLERANCE or y + h > height + TOLERANCE:
        over = f"has the box {shown}, which reaches over the border of its image of {width} × {height} and is cut to it"
        faults.add(what, Broken("box cut to its image", over))
        left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))
        return left, top, right - left, bottom - top
    return x, y, w, h


def _get(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
