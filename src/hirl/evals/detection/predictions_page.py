"""A page of test images with what is there beside what was found: one HTML file, pictures included."""

from __future__ import annotations

import base64
import colorsys
import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hirl.data.annotations.annotated_images import DetectionSet, Segmentation
from hirl.data.annotations.segmentations import pixels
from hirl.evals.detection.predictions import Prediction
from hirl.files import atomic_write

if TYPE_CHECKING:
    from PIL import Image

SURE = 0.5  # the score from which a prediction is drawn
WIDTH = 480  # of a drawn picture, at most, in pixels
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1010px; padding: 0 1rem; color: #222; }
figure { margin: 0 0 2rem; display: grid; grid-template-columns: 1fr 1fr; gap: 10px; }
img { width: 100%; display: block; background: #eee; }
figcaption { grid-column: 1 / -1; overflow-wrap: anywhere; }
.legend span { white-space: nowrap; margin-right: 1em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } }
"""


@dataclass(frozen=True)
class DrawnBox:
    """One box, with its mask and text."""

    label: int
    box: Sequence[float]  # x, y, width, height
    text: str
    segmentation: Segmentation | None
    crowd: bool = False


def write_predictions_page(
    file: Path, images: DetectionSet, predictions: Sequence[Prediction], *, count: int, title: str, figures: str
) -> None:
    """Draws `count` images, spread over the set; on the left what is there, on the right what was found."""
    many = min(count, len(images))
    places = [place * len(images) // many for place in range(many)]
    shown = [images.images[place] for place in places]
    by_image: dict[int, list[Prediction]] = {image.id: [] for image in shown}
    for one in predictions:
        if one["image_id"] in by_image and one["score"] >= SURE:
            by_image[one["image_id"]].append(one)
    labels = {category.id: place for place, category in enumerate(images.categories, start=1)}
    names = {place: category.name for place, category in enumerate(images.categories, start=1)}
    used: set[int] = set()
    parts = []
    for place, image in zip(places, shown, strict=True):
        truth = [
            DrawnBox(one.label, one.box, names[one.label], one.segmentation, one.crowd)
            for one in sorted(image.instances, key=lambda one: -one.area)
        ]
        found = [
            DrawnBox(
                labels[one["category_id"]],
                one["bbox"],
                f"{names[labels[one['category_id']]]} {one['score']:.2f}",
                one.get("segmentation"),
            )
            for one in reversed(by_image[image.id])
        ]
        used |= {one.label for one in (*truth, *found)}
        left, right = (_data_uri(_picture(images, place, drawn)) for drawn in (truth, found))
        caption = f"{image.file.name}: {len(truth)} objects, {len(found)} found with a score of {SURE:g} or more"
        parts.append(
            f'<figure><img src="{left}" alt="truth"><img src="{right}" alt="predictions">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    legend = "".join(
        f'<span><i style="background:rgb{_colour(label)}"></i>{html.escape(names[label])}</span>'
        for label in sorted(used)
    )
    document = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style><h1>{html.escape(title)}</h1>'
        f"<p>{html.escape(figures)}</p><p>Left: annotations (thin and grey: crowds, which are ignored). "
        f'Right: predictions.</p><p class="legend">{legend}</p>{"".join(parts)}</html>\n'
    )
    with atomic_write(file) as aside:
        aside.write_text(document, encoding="utf-8")


def _picture(images: DetectionSet, place: int, drawn: Iterable[DrawnBox]) -> Image.Image:
    from PIL import Image, ImageDraw

    entry = images.images[place]
    array = images.read(place).permute(1, 2, 0).numpy()
    picture = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).convert("RGB")
    scale = WIDTH / max(WIDTH, picture.width)
    drawn = list(drawn)
    for one in drawn:
        if one.segmentation is not None:
            inside = pixels(one.segmentation, entry.width, entry.height).numpy().astype(np.uint8) * 110
            picture.paste(Image.new("RGB", picture.size, _colour(one.label)), mask=Image.fromarray(inside))
    picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    pen = ImageDraw.Draw(picture)
    for one in drawn:
        x, y, width, height = (side * scale for side in one.box)
        colour, line = ((160, 160, 160), 1) if one.crowd else (_colour(one.label), 2)
        pen.rectangle((x, y, x + width, y + height), outline=colour, width=line)
        corner = (x + 2, max(0.0, y - 12))
        pen.rectangle(pen.textbbox(corner, one.text), fill=(0, 0, 0))
        pen.text(corner, one.text, fill=(255, 255, 255))
    return picture


def _colour(label: int) -> tuple[int, int, int]:
    """Neighbouring labels get hues far from each other."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618034 % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
