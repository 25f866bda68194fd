"""images.tsv of a run: where its images are and what identifies them, so that others are never mistaken for them."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hirl.data.sources.image_list import HEADING, ImageList, find_differences, full_path, list_images, path_of
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.opening import open_images
from hirl.files import CHECKSUM, atomic_write, verify
from hirl.runs.folder import RunFolder
from hirl.runs.stored import find_tree

FORMAT = "hirl images 1"


@dataclass(frozen=True)
class Place:
    """Where images are: a path as given, in full, and from the run folder; or the name of a data set; or an object."""

    source: str
    path: str | None = None
    from_run: str | None = None
    object: bool = False


@dataclass(frozen=True)
class OpenedImages:
    """Images to train on, as they were opened.

    Attributes:
        data: What was opened.
        images: The set as `open_images` gives it.
        hashes: Whether a new list has hashes of the content of files: they are small enough to be read at every start.
    """

    data: Any
    images: ImageSet
    hashes: bool

    def place(self, run: RunFolder) -> Place:
        path = path_of(self.data)
        if path is not None:
            full = full_path(path)
            return Place(os.fspath(self.data), full, os.path.relpath(full, full_path(run.folder)))
        if isinstance(self.data, str):
            return Place(self.data)
        return Place(self.images.name, object=True)

    def listed(self, *, hashes: bool) -> ImageList:
        return list_images(self.images, path_of(self.data), hashes=hashes)


def write_images(run: RunFolder, opened: OpenedImages) -> None:
    """Write images.tsv: a line about the list, a heading, and a line per image in the order of training."""
    place, listed = opened.place(run), opened.listed(hashes=opened.hashes)
    lines = listed.lines()
    about = {"checksum": CHECKSUM, "format": FORMAT, **asdict(place), "fingerprint": listed.fingerprint}
    with atomic_write(run.images_file, checksum=True) as aside:
        aside.write_text(f"# {json.dumps(about)}\n{HEADING}\n{lines}", encoding="utf-8")


def read_images(run: RunFolder) -> tuple[Place, ImageList] | None:
    """What `write_images` wrote; None if the file is missing; a ValueError if it is damaged."""
    if not run.images_file.is_file():
        return None
    try:
        verify(run.images_file)
        first, heading, lines = run.images_file.read_bytes().decode("utf-8").split("\n", 2)
        about = json.loads(first.removeprefix("# "))
        if about["format"] != FORMAT or heading != HEADING:
            raise ValueError("it is of another format")
        place = Place(**{name: about[name] for name in ("source", "path", "from_run", "object")})
        return place, ImageList.from_lines(lines, about["fingerprint"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(run.images_file)!r} is damaged") from error


def readable_list(run: RunFolder) -> ImageList | None:
    """The images of the run; None if images.tsv is missing or damaged."""
    try:
        known = read_images(run)
    except ValueError:
        return None
    return None if known is None else known[1]


def changed_images(known: ImageList | None, opened: OpenedImages) -> str | None:
    """How images differ from those of a run, with counts; None if they do not, or the run's are not known."""
    return None if known is None else find_differences(known, opened.listed(hashes=known.has_hashes))


def other_count(run: RunFolder, trained: int, name: str, count: int) -> str | None:
    """The phrase that there are more or fewer images than the run was trained on; None if there are as many."""
    if count == trained:
        return None
    return f"{str(run.folder)!r} was trained on {trained:,} images, but {name} has {count:,}"


def repair_images(run: RunFolder, opened: OpenedImages) -> str | None:
    """Write images.tsv again if it is missing or damaged, or if the images have moved; return a line about damage."""
    try:
        known = read_images(run)
    except ValueError as error:
        write_images(run, opened)
        return f"{error}: it has been written again from the present images"
    if known is None or known[0] != opened.place(run):
        write_images(run, opened)
    return None


def find_images(run: RunFolder) -> tuple[Any, ImageSet | None]:
    """The source of the run's images: wherever the same set is now, else its original place.

    Its training split is opened to be compared, and returned with it; None if there was nothing to compare it with.
    Warns if the set at its old place has changed. Another set at another place is never taken for it.
    """
    config = run.config
    options = {"split": config["split"], "channels": config["channels"]}
    try:
        known = read_images(run)
    except ValueError as error:
        warnings.warn(f"{error}: whether these are the images of the run cannot be checked", stacklevel=2)
        return config["data"], None
    if known is None:
        _warn_of_count(run, config["data"], options)
        return config["data"], None
    place, expected = known
    original = place.source if place.path is None else place.path
    differences: dict[str, str] = {}
    for candidate in _candidates(run, place):
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                images = open_images(candidate, **options)
        except (ValueError, OSError):
            if candidate == original and not place.object:
                raise
            continue
        found = find_differences(expected, list_images(images, path_of(candidate), hashes=expected.has_hashes))
        if found is None:
            for warning in warned:
                warnings.warn(warning.message, stacklevel=2)
            return candidate, images
        differences[candidate] = found
    if original in differences and not place.object:
        warnings.warn(
            f"the images in {original!r} are not those that {str(run.folder)!r} was trained on "
            f"({differences[original]}); name others with --data",
            stacklevel=2,
        )
        return original, None
    if place.object:
        raise ValueError(
            f"{str(run.folder)!r} was trained on images that were passed as an object ({place.source}): give them as "
            "data"
        )
    others = "".join(f", and those in {other!r} are others" for other in differences)
    raise ValueError(f"the images of {str(run.folder)!r} are no longer in {original!r}{others}: name them with --data")


def _candidates(run: RunFolder, place: Place) -> list[str]:
    if place.path is None:
        return [place.source]
    assert place.from_run is not None
    paths = [place.path, os.path.normpath(run.folder / place.from_run), full_path(place.source)]
    return [path for path in dict.fromkeys(paths) if Path(path).exists()]


def _warn_of_count(run: RunFolder, source: Any, options: dict[str, Any]) -> None:
    """Without images.tsv, compare the number of images with the tree's leaves."""
    if run.tree_file.is_file() and path_of(source) is not None:
        try:
            tree = find_tree(run)
        except ValueError:
            return
        trained = 0 if tree is None else len(tree.leaves)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = len(open_images(source, **options))
        if other := other_count(run, trained, repr(source), count):
            warnings.warn(f"{other}; name others with --data", stacklevel=3)
