"""Small pictures of coloured shapes with boxes and masks, in COCO's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

CATEGORIES = [{"id": 3, "name": "box"}, {"id": 7, "name": "tent"}]  # ids with gaps, as COCO's
COLOURS = {3: (220, 40, 40), 7: (40, 60, 220)}
Document = dict[str, list[dict[str, Any]]]


def polygon(category: int, x: float, y: float, width: float, height: float) -> list[float]:
    if category == 3:
        return [x, y, x + width, y, x + width, y + height, x, y + height]
    return [x + width / 2, y, x + width, y + height, x, y + height]


def draw_set(
    folder: Path, images: int = 2, *, size: tuple[int, int] = (64, 56), seed: int = 0, objects: int = 2
) -> Document:
    """Writes pictures into folder/images and returns their annotations; image 2 of four or more has no object."""
    generator = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    document: Document = {"images": [], "annotations": [], "categories": CATEGORIES}
    for number in range(1, images + 1):
        picture = Image.new("RGB", size, (90, 90, 90))
        pen = ImageDraw.Draw(picture)
        for place in range(0 if images > 3 and number == 2 else objects):
            category = CATEGORIES[place % 2]["id"]
            assert isinstance(category, int)
            width, height = (int(side) for side in generator.integers(18, 26, 2))
            left, right = (0, size[0] // 2) if place % 2 == 0 else (size[0] // 2, size[0])
            x = int(generator.integers(left, max(left + 1, right - width)))
            y = int(generator.integers(0, size[1] - height))
            shape = polygon(category, x, y, width, height)
            pen.polygon([(shape[n], shape[n + 1]) for n in range(0, len(shape), 2)], fill=COLOURS[category])
            document["annotations"].append(
                {
                    "id": len(document["annotations"]) + 1,
                    "image_id": number,
                    "category_id": category,
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "segmentation": [shape],
                }
            )
        picture.save(folder / "images" / f"{number}.png")
        entry = {"id": number, "file_name": f"{number}.png", "width": size[0], "height": size[1]}
        document["images"].append(entry)
    return document
