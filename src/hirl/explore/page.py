"""A page: one HTML file with its style, script and data inside, and its thumbnails in a folder beside it.

A page opens from disk, without a server, and never uses the network: its content security policy forbids that, and
allows no script but the page's own. Data are JSON in a block that is never executed; scripts put them on the page as
text, never as markup, since the names of files and classes may contain anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from hirl.data.own_folders import GENERATOR, PAGE, SHEETS, is_page
from hirl.data.sources.escape import one_line
from hirl.files import atomic_folder, check_parent

_TEMPLATES = files("hirl.explore") / "pages"


def check_page_folder(folder: Path) -> None:
    """Raise a ValueError if a page cannot be written to `folder`, or would overwrite something other than a page."""
    check_parent(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file, but must be a folder to write a page to: name one with --out")
    if not is_page(folder) and any(folder.iterdir()):
        raise ValueError(
            f"the folder {str(folder)!r} has other content, but must be empty or hold a page of hirl: name another one "
            "with --out"
        )


@contextmanager
def page_folder(folder: Path, *lists: str) -> Iterator[Path]:
    """A new folder to write a page and its thumbnails to; it replaces an existing page once it is complete.

    What else lies in the folder, such as notes, stays, but for the `lists` that belong to the earlier page.
    """
    check_page_folder(folder)
    with atomic_folder(folder, replaced={PAGE, SHEETS, *lists}) as aside:
        yield aside


def write_page(folder: Path, kind: str, title: str, data: dict[str, Any]) -> None:
    """Write index.html from the templates of a kind: tree, map, gallery, curves or sides."""
    style = _template("base.css") + _template(f"{kind}.css")
    script = "'use strict';\n(() => {\n" + _template("base.js") + _template(f"{kind}.js") + "\n})();\n"
    parts = {
        "GENERATOR": GENERATOR,
        "TITLE": html.escape(one_line(title)),
        "FRAMES": " frame-src 'self' file:;" if kind == "sides" else "",
        "STYLE_HASH": _hash(style),
        "SCRIPT_HASH": _hash(script),
        "STYLE": style,
        "BODY": _template(f"{kind}.html").replace("%%VIEWER%%", _template("viewer.html").rstrip()),
        # ASCII that cannot close the HTML block around it
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "SCRIPT": script,
    }
    # One pass over the template, so that nothing inside the data is taken for a placeholder.
    pieces = _template("page.html").split("%%")
    text = "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))
    (folder / PAGE).write_text(text, encoding="utf-8", newline="\n")


def pack(values: Any, kind: str) -> str:
    """Numbers as base64 of little-endian `kind` (u1, u2, i4), for the script's typed arrays."""
    array = np.asarray(values)
    limits = np.iinfo(np.dtype(kind))
    assert array.size == 0 or (array.min() >= limits.min and array.max() <= limits.max), "numbers do not fit the type"
    return base64.b64encode(np.ascontiguousarray(array.astype(np.dtype(kind).newbyteorder("<"))).tobytes()).decode()


def pack_fractions(values: Any) -> str:
    """Numbers from 0 to 1, quantised to two bytes each, as base64."""
    return pack((np.asarray(values) * 65535).round().astype(np.int64), "u2")


def file_data(paths: Sequence[str], folder: Path) -> dict[str, Any]:
    """The paths of images for a page in `folder`: each folder once, and a link to the files.

    `link` leads from the page to the folder that the paths are relative to; None if they are not files.
    """
    if len({path.startswith("/") for path in paths}) > 1:  # such as the images of a run and a query: make all absolute
        here = Path.cwd()
        paths = [str(here / path) if Path(path).is_file() else path for path in paths]
    parts = [path.rpartition("/") for path in paths]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(before for before, _, _ in parts))}
    root = _common_folder(list(numbers))
    one_root = root != "" or not any(name.startswith("/") for name in numbers)
    are_files = one_root and bool(paths) and Path(paths[0]).is_file()
    return {
        "root": root,
        # The page's address is that of the folder itself, also if the way to it is a link.
        "link": os.path.relpath(os.path.realpath(root or "."), os.path.realpath(folder)) if are_files else None,
        "folders": [name[len(root) :].lstrip("/") if root else name for name in numbers],
        "folderOf": pack([numbers[before] for before, _, _ in parts], "i4"),
        "files": [name for _, _, name in parts],
    }


def _common_folder(folders: Sequence[str]) -> str:
    """Their common folder as text, without normalising, so that root/folder/file is exactly the original path."""
    common = [set(parts) for parts in zip(*(folder.split("/") for folder in folders), strict=False)]
    shared = list(takewhile(lambda parts: len(parts) == 1, common))
    root = "/".join(part for parts in shared for part in parts)
    return "/" if shared and not root and folders[0].startswith("/") else root


def _template(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
