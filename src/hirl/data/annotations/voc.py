"""Pascal VOC annotations: one XML file per image. Boxes alone; difficult objects are ignored, as the challenge does."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hirl.data.annotations.annotated_images import (
    AnnotatedImage,
    Broken,
    Category,
    DetectionSet,
    Faults,
    Instance,
    image_size,
)
from hirl.data.annotations.coco import check_box
from hirl.data.sources.decode import EXTENSIONS

Objects = list[tuple[str, ElementTree.Element]]  # (what it is called in messages, element)


def read_voc(
    files: Sequence[Path], images: Path, *, name: str, categories: Sequence[Category] | None = None, channels: int = 3
) -> DetectionSet:
    """The images of these XML files, which lie in the folder `images`.

    categories: those of the training split; None to take the names that occur, in alphabetical order.
    """
    faults = Faults(name)
    read: list[tuple[AnnotatedImage, Objects]] = []
    for place, file in enumerate(sorted(files), start=1):
        try:
            read.append(_image(file, images, place))
        except Broken as fault:
            faults.add(f"annotation file {file.name}", fault)
    names = sorted({_text(element, "name") or "" for _, objects in read for _, element in objects} - {""})
    known = [Category(key, text) for key, text in enumerate(names, start=1)] if categories is None else list(categories)
    labels = {category.name: place for place, category in enumerate(known, start=1)}
    complete = []
    number = 0  # objects of VOC have no id: their place serves
    for image, objects in read:
        instances = []
        for what, element in objects:
            number += 1
            try:
                instances.append(_instance(number, element, image, labels, what, faults))
            except Broken as fault:
                faults.add(what, fault)
        complete.append(replace(image, instances=tuple(instances)))
    if not known:
        raise ValueError(f"{name} has no named object in any of its {len(files)} annotation files")
    return DetectionSet(name, complete, known, faults, channels=channels)


def _image(file: Path, images: Path, place: int) -> tuple[AnnotatedImage, Objects]:
    try:
        root = ElementTree.parse(file).getroot()
    except OSError as error:
        raise Broken("missing annotation file", "is listed, but is not there or cannot be read") from error
    except (ElementTree.ParseError, UnicodeDecodeError) as error:
        raise Broken("broken XML", f"is not valid XML, or is cut short ({error})") from error
    if root.tag != "annotation":
        raise Broken("XML that is not an annotation", f"starts with <{root.tag}>, but must with <annotation>")
    found = _image_file(images, _text(root, "filename"), file.stem)
    width, height = image_size(found)
    objects = [(f"object {n} of {file.name}", element) for n, element in enumerate(root.iter("object"))]
    return AnnotatedImage(place, found, width, height, ()), objects


def _image_file(folder: Path, name: str | None, stem: str) -> Path:
    """The file that is named, or the one called like the XML file."""
    candidates = [folder / name] if name else []
    candidates += [folder / f"{stem}{extension}" for extension in EXTENSIONS]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        raise Broken("missing image file", f"has no image: there is no file {folder / (name or stem)}")
    return found


def _instance(
    number: int, element: ElementTree.Element, image: AnnotatedImage, labels: dict[str, int], what: str, faults: Faults
) -> Instance:
    name = _text(element, "name")
    if name is None or name not in labels:
        raise Broken("unknown category", f"is called {name!r}, which is not among the categories")
    corners = [_text(element, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    try:
        left, top, right, bottom = (float(corner or "") for corner in corners)
    except ValueError as error:
        raise Broken(
            "box that is not four numbers", f"has the box {corners}, but needs xmin, ymin, xmax, ymax"
        ) from error
    # VOC counts pixels from 1 and means the last one to be inside.
    box = check_box((left - 1, top - 1, right - left + 1, bottom - top + 1), image, what, faults)
    crowd = _text(element, "difficult") == "1"
    return Instance(number, labels[name], box, box[2] * box[3], crowd)


def _text(element: ElementTree.Element, path: str) -> str | None:
    found = element.find(path)
    text = None if found is None or found.text is None else found.text.strip()
    return text or None
