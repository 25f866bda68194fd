"""Masks of objects: polygons and run-length encodings, checked, and as arrays of pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hirl.data.annotations.annotated_images import AnnotatedImage, Broken, Faults, Segmentation, is_number

CORNERS = 3  # of a polygon, at least; pycocotools reads two points as a box


def check_segmentation(segmentation: Any, image: AnnotatedImage, what: str, faults: Faults) -> Segmentation:
    """The mask without its broken polygons, which are listed; raises Broken if nothing is left."""
    if isinstance(segmentation, dict):
        _check_runs(segmentation, image.width, image.height)
        return segmentation
    if not isinstance(segmentation, list) or not segmentation:
        raise Broken("object without mask", "has no mask; set detection.segment to false to score boxes alone")
    kept: list[list[float]] = []
    for place, polygon in enumerate(segmentation):
        try:
            _check_polygon(polygon, place)
        except Broken as fault:
            if len(segmentation) == 1:
                raise
            faults.add(what, fault)
        else:
            kept.append(polygon)
    if not kept:
        raise Broken("object without mask", f"has {len(segmentation)} polygons, none of which is usable")
    return kept


def _check_polygon(polygon: Any, place: int) -> None:
    if not (isinstance(polygon, list) and all(map(is_number, polygon)) and len(polygon) % 2 == 0):
        raise Broken("broken polygon", f"has a polygon ({place}) that is not a list of pairs x, y")
    if len(polygon) < 2 * CORNERS:
        points = len(polygon) // 2
        raise Broken("polygon of too few points", f"has a polygon ({place}) of {points} points, but needs {CORNERS}")


def _check_runs(runs: dict[str, Any], width: int, height: int) -> None:
    size, counts = runs.get("size"), runs.get("counts")
    if not (isinstance(size, list | tuple) and list(size) == [height, width]):
        raise Broken("mask of another size", f"has a mask of size {size!r}, but its image is {[height, width]}")
    length = None
    if isinstance(counts, str):
        length = _decoded_length(counts)
    elif isinstance(counts, list) and all(type(number) is int and number >= 0 for number in counts):
        length = sum(counts)
    if length != width * height:
        raise Broken("broken mask", f"has a mask whose runs do not add up to {width} × {height} pixels")


def _decoded_length(counts: str) -> int | None:
    """The sum of compressed runs: 5 bits per character, from the fourth run on the difference to the last but one."""
    runs: list[int] = []
    place = 0
    while place < len(counts):
        value, shift, more = 0, 0, True
        while more:
            if place == len(counts):
                return None
            code = ord(counts[place]) - 48
            if not 0 <= code < 64:
                return None
            value |= (code & 0x1F) << shift
            shift += 5
            more = bool(code & 0x20)
            if not more and code & 0x10:
                value -= 1 << shift
            place += 1
        if len(runs) > 2:
            value += runs[-2]
        if value < 0:
            return None
        runs.append(value)
    return sum(runs)


def run_lengths(segmentation: Segmentation, width: int, height: int) -> dict[str, Any]:
    """One compressed run-length encoding."""
    from pycocotools import mask

    if isinstance(segmentation, list):
        return dict(mask.merge(mask.frPyObjects(segmentation, height, width)))
    if isinstance(segmentation["counts"], list):
        return dict(mask.frPyObjects(segmentation, height, width))
    return segmentation


def pixels(segmentation: Segmentation, width: int, height: int) -> Tensor:
    """(height, width) uint8, 1 where the object is."""
    from pycocotools import mask

    decoded: np.ndarray[Any, Any] = mask.decode(run_lengths(segmentation, width, height))
    return torch.from_numpy(np.ascontiguousarray(decoded))


def encoded(mask_pixels: Tensor) -> dict[str, Any]:
    """The compressed run-length encoding of (height, width) pixels, as text."""
    from pycocotools import mask

    runs = mask.encode(np.asfortranarray(mask_pixels.to(torch.uint8).numpy()))
    return {"size": [int(side) for side in runs["size"]], "counts": runs["counts"].decode("ascii")}
