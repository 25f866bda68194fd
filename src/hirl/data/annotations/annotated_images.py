"""Images with boxes and masks, as every annotation format becomes them, and the faults found while reading."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.data.sources.image_set import BadImage, ImageSet

_ORIENTATION = 0x0112  # the EXIF tag
_SIDEWAYS = (5, 6, 7, 8)  # its values for pictures lying on their side
Box = tuple[float, float, float, float]  # x, y, width, height in pixels, as COCO has it
Segmentation = list[list[float]] | dict[str, Any]  # polygons, or a run-length encoding with size and counts


@dataclass(frozen=True, slots=True)
class Instance:
    """One annotated object."""

    id: int
    label: int  # 1 … number of categories; 0 is the background
    box: Box
    area: float  # of the mask where there is one: by it COCO tells small, medium and large
    crowd: bool = False  # a region of many objects, or a difficult one: neither learnt nor counted as missed
    segmentation: Segmentation | None = None


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """One image and its objects; it may have none."""

    id: int
    file: Path
    width: int
    height: int
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class Category:
    id: int  # as the annotation file has it; labels are places in the list of categories
    name: str


class DetectionSet(ImageSet):
    """The annotated images of one part of a data set, in the order of its file."""

    def __init__(
        self,
        name: str,
        images: Sequence[AnnotatedImage],
        categories: Sequence[Category],
        faults: Faults,
        *,
        channels: int = 3,
    ) -> None:
        """Raises a ValueError if every image was dropped."""
        if not images:
            first = f"; {faults.sentences[0][1]}" if len(faults) else ""
            raise ValueError(f"{name} has no usable image{first}")
        super().__init__(name=name, channels=channels)
        self.images = tuple(images)
        self.categories = tuple(categories)
        self.faults = faults
        self.fingerprint = self._sha256()

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:
        self._check(index)
        try:
            data = self.images[index].file.read_bytes()
        except OSError as error:
            raise BadImage(index, self.path(index), str(error)) from error
        return self._decode(data, index, shorter)

    def path(self, index: int) -> str:
        return str(self.images[index].file)

    @property
    def instances(self) -> Iterator[Instance]:
        return (instance for image in self.images for instance in image.instances)

    def with_objects(self) -> DetectionSet:
        """The images that have an object to learn from; one in a crowd is none."""
        kept = [image for image in self.images if not all(one.crowd for one in image.instances)]
        return DetectionSet(self.name, kept, self.categories, self.faults, channels=self.channels)

    def _sha256(self) -> str:
        """Of all that training and scoring depend on; files count by their size and time."""
        found = hashlib.sha256(json.dumps([[one.id, one.name] for one in self.categories]).encode())
        for image in self.images:
            instances = [[one.id, one.label, *one.box, one.crowd, one.segmentation] for one in image.instances]
            status = image.file.stat()
            file = [image.file.name, status.st_size, status.st_mtime_ns]
            entry = [image.id, file, image.width, image.height, instances]
            found.update(json.dumps(entry, sort_keys=True).encode())
        return found.hexdigest()


class Broken(ValueError):  # noqa: N818 - an entry of a file, which is dropped and listed
    """An entry breaks a rule. `rule` names it for counting, `why` states the value and the rule."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(rule, why)
        self.rule = rule
        self.why = why


@dataclass
class Faults:
    """What was dropped or mended in an annotation file: one sentence per entry, with file, id and rule."""

    file: str
    sentences: list[tuple[str, str]] = field(default_factory=list)  # (rule, sentence)

    def add(self, what: str, fault: Broken) -> None:
        """`what` is an image or annotation with its id."""
        self.sentences.append((fault.rule, f"{one_line(self.file)}: {one_line(what)} {one_line(fault.why)}."))

    def __len__(self) -> int:
        return len(self.sentences)

    def summary(self) -> str:
        """Counts per rule and the first sentence of each."""
        counts = Counter(rule for rule, _ in self.sentences)
        first = dict(reversed(self.sentences))
        return "\n".join(f"{count:,} × {rule}, e.g. {first[rule]}" for rule, count in counts.items())


def check_parts(train: DetectionSet, test: DetectionSet) -> None:
    """Both parts must have the same categories; training needs at least one box."""
    if train.categories != test.categories:
        ours, theirs = ({(one.id, one.name) for one in part.categories} for part in (train, test))
        odd = sorted(ours ^ theirs)
        where = train.name if odd and odd[0] in ours else test.name
        example = f" (id {odd[0][0]}, {odd[0][1]!r}, is in {where} alone)" if odd else " in their order"
        raise ValueError(
            f"the categories of {train.name} and {test.name} differ{example}: both parts must have the same ones"
        )
    for part in (train, test):
        if not any(not instance.crowd for instance in part.instances):
            raise ValueError(f"{part.name} has no box to {'learn from' if part is train else 'find'}: add annotations")


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number; JSON's true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def image_size(file: Path) -> tuple[int, int]:
    """Width and height, shown upright, from its header; raises Broken for a file that is missing or not an image."""
    from PIL import Image

    if not file.is_file():
        raise Broken("missing image file", f"is missing: there is no file {file}")
    try:
        with Image.open(file) as image:
            sideways = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
            return (image.height, image.width) if sideways else (image.width, image.height)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Broken("unreadable image file", f"cannot be read: {file} is not an image, or is damaged") from error
