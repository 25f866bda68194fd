"""Where annotations and images lie: COCO files and Pascal VOC folders, by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hirl.data.annotations.annotated_images import Category, DetectionSet
from hirl.data.annotations.coco import Document, read_coco, read_document
from hirl.data.annotations.voc import read_voc
from hirl.files import expanded

PARTS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test", "testing")}
IMAGE_FOLDERS = ("images", "JPEGImages", "")
LOOKED_AT = 20  # images used to find the image folder


def open_detection(
    source: str | Path, split: str, *, segment: bool, categories: Sequence[Category] | None = None, channels: int = 3
) -> DetectionSet:
    """One part of a COCO-format set or Pascal VOC folder; `source` may be a COCO file itself.

    categories: those of the training split, for formats that do not list them.
    """
    path = expanded(source)
    if not path.exists():
        raise ValueError(f"there is no folder and no annotation file {str(path)!r}")
    if path.is_file() and path.suffix.lower() != ".json":
        raise ValueError(
            f"{str(path)!r} has no annotations: name a folder or file in COCO's format, or a Pascal VOC folder, with "
            "--data"
        )
    file = path if path.is_file() else _coco_file(path, split)
    if file is not None:
        document = read_document(file)
        root = path.parent if path.is_file() else path
        folder = _image_folder(document, file, root, split)
        return read_coco(document, file, folder, segment=segment, channels=channels)
    found = _voc_files(path, split)
    if found is None:
        names = " or ".join(f"instances_{name}*.json" for name in PARTS.get(split, (split,))[:2])
        raise ValueError(
            f"{str(path)!r} has no annotations of its split {split!r}: put {names} there or in annotations/, or Pascal "
            "VOC files in Annotations/"
        )
    if segment:
        raise ValueError(f"{str(path)!r} has boxes but no masks: set detection.segment to false to score boxes alone")
    return read_voc(*found, name=f"{path} ({split})", categories=categories, channels=channels)


def _coco_file(root: Path, split: str) -> Path | None:
    """instances_train2017.json and the like; the first name for the part that is there counts."""
    for name in PARTS.get(split, (split,)):
        for folder in (root / "annotations", root, root / name):
            named = sorted(folder.glob(f"instances_{name}*.json")) or sorted(folder.glob(f"{name}*.json"))
            named = named or sorted((root / name).glob("*annotations*.json"))
            if len(named) > 1:
                listed = ", ".join(file.name for file in named)
                raise ValueError(
                    f"{str(folder)!r} has several annotation files for {split!r} ({listed}): name one of them"
                )
            if named:
                return named[0]
    return None


def _image_folder(document: Document, file: Path, root: Path, split: str) -> Path:
    """The folder in which the first images of the file are found."""
    entries = document["images"][:LOOKED_AT]
    given = [entry.get("file_name") for entry in entries if isinstance(entry, dict)]
    names = [name for name in given if isinstance(name, str) and name]
    tried = list(dict.fromkeys(_candidates(file, root, split)))
    found = next((folder for folder in tried if any((folder / name).is_file() for name in names)), None)
    if found is None:
        listed = ", ".join(str(folder) for folder in tried)
        example = f" (such as {names[0]!r})" if names else ""
        raise ValueError(f"{str(file)!r}: none of its first images{example} is there; looked in {listed}")
    return found


def _candidates(file: Path, root: Path, split: str) -> Iterator[Path]:
    """Folders in question that exist, the likeliest first: images/train2017, images/train, train, images …"""
    stem = file.stem.removeprefix("instances_")
    for base in dict.fromkeys((root, file.parent, file.parent.parent)):
        for inner in IMAGE_FOLDERS:
            for name in (stem, *PARTS.get(split, (split,)), ""):
                folder = base / inner / name
                if folder.is_dir():
                    yield folder


def _voc_files(root: Path, split: str) -> tuple[list[Path], Path] | None:
    """The XML files of a part and the folder of their images, in either of the usual layouts."""
    for base in (root, *sorted(folder for folder in root.iterdir() if folder.is_dir())):
        for name in PARTS.get(split, (split,)):
            beside = base / name
            if any(beside.glob("*.xml")):  # train/1.xml and train/1.jpg
                return sorted(beside.glob("*.xml")), beside
            listed = base / "ImageSets" / "Main" / f"{name}.txt"  # VOC2012/ImageSets/Main/train.txt
            if listed.is_file() and (base / "Annotations").is_dir():
                names = [line.split()[0] for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
                return [base / "Annotations" / f"{one}.xml" for one in names], base / "JPEGImages"
    return None
