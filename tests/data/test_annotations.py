"""Annotation files: what is read, and what is wrong with them in one sentence each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hirl.data.annotations.annotated_images import DetectionSet, check_parts
from hirl.data.annotations.detection_folder import open_detection
from hirl.data.annotations.segmentations import pixels

from ..drawn_set import Document, draw_set

Coco = Callable[..., Path]


def opened(folder: Path, *, segment: bool = True) -> DetectionSet:
    return open_detection(folder, "train", segment=segment)


def test_a_set_is_read_as_it_stands(coco: Coco) -> None:
    def crowd(document: Document) -> None:
        document["annotations"][0] |= {"iscrowd": 1, "segmentation": {"size": [56, 64], "counts": [100, 50, 3434]}}

    images = opened(coco(crowd, images=4))
    assert [image.id for image in images.images] == [1, 2, 3, 4]
    assert [len(image.instances) for image in images.images] == [2, 0, 2, 2]  # an image without objects stays
    assert [category.name for category in images.categories] == ["box", "tent"]
    first, second = images.images[0].instances
    assert (first.crowd, second.crowd) == (True, False)
    assert (first.label, second.label) == (1, 2)  # category ids 3 and 7
    assert first.segmentation is not None
    assert int(pixels(first.segmentation, 64, 56).sum()) == 50
    assert not len(images.faults)
    assert images.read(0).shape == (3, 56, 64)
    check_parts(images, open_detection(images.images[0].file.parents[1], "val", segment=True))


def edit(what: str, place: int, **values: Any) -> Callable[[Document], None]:
    return lambda document: document[what][place].update(values)


# What is done to the train split; the rule that is counted; what its sentence says.
DROPPED: list[tuple[Callable[[Document], object], str, str]] = [
    (edit("images", 0, file_name="gone.png"), "missing image file", "image id 1 is missing: there is no file"),
    (edit("images", 0, width=63), "image of another size", "image id 1 is 63 × 56 by its annotations, but"),
    (
        edit("images", 0, height=0),
        "image without size",
        "image id 1 is 64 × 0, but width and height must be at least 1",
    ),
    (edit("images", 1, id=1), "duplicate image id", "image id 1 is used again, by '2.png'; ids are unique"),
    (edit("images", 0, id="1"), "image without id or file name", "image 0 must have a whole number as id"),
    (edit("annotations", 1, id=1), "duplicate annotation id", "annotation id 1 is used again, for image id 1"),
    (edit("annotations", 1, id=None), "annotation without id", "annotation 1 must have a whole number as id"),
    (edit("annotations", 1, image_id=99), "unknown image", "annotation id 2 belongs to image id 99, which is not"),
    (edit("annotations", 1, category_id=4), "unknown category", "annotation id 2 has category id 4, which is not"),
    (edit("annotations", 1, bbox=[5, 5, 0, 9]), "box without area", "annotation id 2 has the box [5, 5, 0, 9], whose"),
    (edit("annotations", 1, bbox=[5, 5, -3, 9]), "box without area", "width and height must be above 0"),
    (
        edit("annotations", 1, bbox=[64, 5, 3, 9]),
        "box outside its image",
        "[64, 5, 3, 9], which lies outside its image of 64 × 56",
    ),
    (edit("annotations", 1, bbox=[5, 5, 3]), "box that is not four numbers", "a box is x, y, width, height"),
    (edit("annotations", 1, bbox=[5, 5, float("nan"), 3]), "box that is not four numbers", "[5, 5, nan, 3]"),
    (edit("annotations", 1, segmentation=[[1, 1, 9, 9]]), "polygon of too few points", "(0) of 2 points, but needs 3"),
    (edit("annotations", 1, segmentation=[[1, 1, 9, 9, 5]]), "broken polygon", "is not a list of pairs x, y"),
    (edit("annotations", 1, segmentation=[]), "object without mask", "annotation id 2 has no mask"),
    (edit("annotations", 1, segmentation={"size": [9, 9], "counts": [81]}), "mask of another size", "is [56, 64]"),
    (edit("annotations", 1, segmentation={"size": [56, 64], "counts": [9]}), "broken mask", "do not add up to 64 × 56"),
    (edit("annotations", 1, segmentation={"size": [56, 64], "counts": "1"}), "broken mask", "do not add up to 64 × 56"),
]


@pytest.mark.parametrize(
    ("change", "rule", "sentence"), DROPPED, ids=[f"{n}-{one[1]}" for n, one in enumerate(DROPPED)]
)
def test_what_can_be_dropped_is_listed(
    coco: Coco, change: Callable[[Document], object], rule: str, sentence: str
) -> None:
    folder = coco(change)
    images = opened(folder)
    assert images.faults.sentences[0][0] == rule
    assert {found for found, _ in images.faults.sentences[1:]} <= {"unknown image"}  # without their image's id
    text = images.faults.sentences[0][1]
    assert sentence in text
    assert str(folder / "annotations" / "instances_train.json") in text
    assert text in images.faults.summary()
    kept = sum(1 for _ in images.instances)
    assert kept == (2 if "image" in rule and rule not in ("unknown image", "box outside its image") else 3)


def test_a_box_over_the_border_is_cut_and_listed(coco: Coco) -> None:
    images = opened(coco(edit("annotations", 0, bbox=[-5, 50, 20, 20])))
    assert next(images.instances).box == (0, 50, 15, 6)
    assert [rule for rule, _ in images.faults.sentences] == ["box cut to its image"]
    within = opened(coco(edit("annotations", 0, bbox=[-0.5, 40, 20, 16.8])))  # less than a pixel, as in COCO itself
    assert next(within.instances).box == (-0.5, 40, 20, 16.8)
    assert not len(within.faults)


def test_a_broken_polygon_among_good_ones_goes_alone(coco: Coco) -> None:
    good = [1.0, 1.0, 9.0, 1.0, 9.0, 9.0]
    images = opened(coco(edit("annotations", 0, segmentation=[[1, 2, 3, 4], good])))
    assert next(images.instances).segmentation == [good]
    assert len(images.faults) == 1


def test_masks_are_not_read_for_boxes_alone(coco: Coco) -> None:
    images = opened(coco(edit("annotations", 0, segmentation=[[1, 1]])), segment=False)
    assert not len(images.faults)
    assert all(instance.segmentation is None for instance in images.instances)


def test_an_unreadable_image_is_dropped(coco: Coco) -> None:
    folder = coco()
    (folder / "images" / "1.png").write_bytes(b"nothing")
    images = opened(folder)
    assert len(images) == 1
    assert "1.png is not an image, or is damaged" in images.faults.sentences[0][1]


def without(section: str) -> Callable[[Document], object]:
    return lambda document: document.pop(section)


FATAL: list[tuple[Callable[[Document], object], str]] = [
    (without("images"), "is not a COCO file: it has no list of images"),
    (without("annotations"), "is not a COCO file: it has no list of annotations"),
    (lambda document: document.update(categories=[]), "has no categories"),
    (lambda document: document.update(categories=[{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]), "ids are unique"),
    (lambda document: document.update(categories=[{"id": "3", "name": "a"}]), "category 0 must have a whole number"),
    (
        lambda document: [one.update(file_name="x" + one["file_name"]) for one in document["images"]],
        "none of its first",
    ),
    (lambda document: [one.pop("segmentation") for one in document["annotations"]], "set detection.segment to false"),
]


@pytest.mark.parametrize(("change", "message"), FATAL, ids=[message for _, message in FATAL])
def test_what_cannot_be_mended_is_an_error(coco: Coco, change: Callable[[Document], object], message: str) -> None:
    with pytest.raises(ValueError, match=r"instances_train\.json") as error:
        opened(coco(change))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_cut_short_is_an_error(coco: Coco) -> None:
    folder = coco()
    file = folder / "annotations" / "instances_train.json"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"instances_train\.json' is not valid JSON, or is cut short"):
        opened(folder)
    file.write_text("[1]")
    with pytest.raises(ValueError, match="is not a COCO file: it holds a list"):
        opened(folder)


def test_a_part_that_is_not_there_is_an_error(coco: Coco, tmp_path: Path) -> None:
    folder = coco()
    (folder / "annotations" / "instances_train.json").unlink()
    with pytest.raises(ValueError, match="has no annotations of its split 'train'"):
        opened(folder)
    with pytest.raises(ValueError, match="there is no folder and no annotation file"):
        opened(tmp_path / "nowhere")


def test_several_files_for_a_part_are_an_error(coco: Coco) -> None:
    folder = coco()
    (folder / "annotations" / "instances_train2017.json").write_text("{}")
    with pytest.raises(ValueError, match="has several annotation files for 'train'"):
        opened(folder)


def test_parts_must_have_the_same_categories(coco: Coco) -> None:
    folder = coco(lambda document: document.update(categories=[*document["categories"], {"id": 9, "name": "new"}]))
    with pytest.raises(ValueError, match=r"\(id 9, 'new', is in .*train.json alone\)"):
        check_parts(opened(folder), open_detection(folder, "val", segment=True))


def test_parts_must_have_boxes(coco: Coco) -> None:
    folder = coco(lambda document: [one.update(iscrowd=1) for one in document["annotations"]])
    with pytest.raises(ValueError, match="has no box to learn from"):
        check_parts(opened(folder), open_detection(folder, "val", segment=True))


@pytest.mark.parametrize(
    ("annotations", "pictures"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("instances_train.json", "images"),
        ("train/_annotations.coco.json", "train"),
        ("train.json", ""),
    ],
)
def test_usual_layouts_are_found(annotations: str, pictures: str, tmp_path: Path) -> None:
    document = draw_set(tmp_path / "drawn")
    folder = tmp_path / "set"
    for place in (folder / annotations, folder / pictures / "any"):
        place.parent.mkdir(parents=True, exist_ok=True)
    for file in (tmp_path / "drawn" / "images").iterdir():
        file.rename(folder / pictures / file.name)
    (folder / annotations).write_text(json.dumps(document))
    images = opened(folder)
    assert len(images) == 2
    assert images.images[0].file.parent == (folder / pictures if pictures else folder)
    assert len(open_detection(folder / annotations, "train", segment=True)) == 2  # the file itself


VOC = """<annotation><filename>{name}.png</filename><size><width>64</width><height>56</height><depth>3</depth></size>
<object><name>tent</name><difficult>0</difficult><bndbox><xmin>11</xmin><ymin>6</ymin><xmax>30</xmax><ymax>25</ymax></bndbox>
</object><object><name>box</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>64</xmax><ymax>56</ymax></bndbox></object>{more}</annotation>"""


def voc(folder: Path, names: list[str], more: str = "") -> None:
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (64, 56)).save(folder / "JPEGImages" / f"{name}.png")
        (folder / "Annotations" / f"{name}.xml").write_text(VOC.format(name=name, more=more))


def test_pascal_voc_is_read(tmp_path: Path) -> None:
    voc(tmp_path / "VOC2012", ["a", "b", "c"])
    (tmp_path / "VOC2012/ImageSets/Main/train.txt").write_text("a\nb\n")
    (tmp_path / "VOC2012/ImageSets/Main/val.txt").write_text("c\n")
    train = open_detection(tmp_path, "train", segment=False)
    test = open_detection(tmp_path, "val", segment=False, categories=train.categories)
    check_parts(train, test)
    assert (len(train), len(test)) == (2, 1)
    assert [one.name for one in train.categories] == ["box", "tent"]
    tent, box = train.images[0].instances
    assert list(tent.box) == [10, 5, 20, 20]  # pixels 11 … 30, counted from 1
    assert list(box.box) == [0, 0, 64, 56]
    assert (tent.crowd, box.crowd) == (False, True)  # difficult objects are ignored
    with pytest.raises(ValueError, match=r"has boxes but no masks: set detection\.segment to false"):
        open_detection(tmp_path, "train", segment=True)


def test_faults_of_pascal_voc_are_listed(tmp_path: Path) -> None:
    ghost = (
        "<object><name>ghost</name><bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>4</xmax><ymax>9</ymax></bndbox></object>"
    )
    voc(tmp_path, ["a", "b", "c", "d"])
    (tmp_path / "Annotations/b.xml").write_text(VOC.format(name="b", more="")[:200])
    (tmp_path / "JPEGImages/c.png").unlink()
    (tmp_path / "Annotations/d.xml").write_text(VOC.format(name="d", more=ghost.format(1) + ghost.format("x")))
    (tmp_path / "ImageSets/Main/train.txt").write_text("a\n")
    (tmp_path / "ImageSets/Main/val.txt").write_text("b\nc\nd\ne\n")
    train = open_detection(tmp_path, "train", segment=False)
    test = open_detection(tmp_path, "val", segment=False, categories=train.categories)
    assert [rule for rule, _ in test.faults.sentences] == [
        "broken XML",
        "missing image file",
        "missing annotation file",
        "unknown category",
        "unknown category",
    ]
    assert "object 2 of d.xml is called 'ghost', which is not among the categories" in test.faults.sentences[3][1]


def test_a_set_has_one_fingerprint_for_all_that_counts(coco: Coco) -> None:
    folder = coco()
    file = folder / "annotations" / "instances_train.json"
    untouched = file.read_text()
    found = {opened(folder).fingerprint}
    changes: list[dict[str, Any]] = [
        {},
        {"bbox": [1, 1, 5, 5]},
        {"category_id": 7},
        {"segmentation": [[1, 1, 9, 1, 9, 9]]},
        {"iscrowd": 1},
    ]
    for change in changes:
        document = json.loads(untouched)
        document["annotations"][0] |= change
        file.write_text(json.dumps(document))
        found.add(opened(folder).fingerprint)
    assert len(found) == len(changes)  # the first changes nothing
    file.write_text(untouched)
    Image.new("RGB", (64, 56), (1, 2, 3)).save(folder / "images" / "1.png")
    assert opened(folder).fingerprint not in found
