"""Images of one file under several paths: links to it, and folders that are reached by two ways.

They are no copies: whoever deletes one of them may delete the only file there is.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import takewhile

from hirl.data.sources.image_set import ImageSet


def other_paths(images: ImageSet) -> set[int]:
    """All images but one of each file that several paths lead to; the file itself is left, if it is among them."""
    candidates: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index in range(len(images)):
        try:
            about = os.stat(images.path(index))  # noqa: PTH116 - much faster than a Path, and sets are large
        except (OSError, ValueError):  # it is not a file
            continue
        candidates[about.st_dev, about.st_ino].append(index)
    found: set[int] = set()
    for alike in candidates.values():
        files: dict[str, list[int]] = defaultdict(list)
        for index in alike if len(alike) > 1 else ():  # hard links have paths of their own, and each can be deleted
            files[os.path.realpath(images.path(index))].append(index)
        for file, paths in files.items():
            found |= {*paths} - {_nearest(file, paths, images)}
    return found


def _nearest(file: str, paths: list[int], images: ImageSet) -> int:
    """The image whose path ends most like the file's own, since the folder of all images may be a link, too."""

    def shared(index: int) -> int:
        ends = zip(reversed(file.split("/")), reversed(images.path(index).split("/")), strict=False)
        return sum(1 for _ in takewhile(lambda parts: parts[0] == parts[1], ends))

    return max(paths, key=shared)
