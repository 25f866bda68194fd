"""Lists of files for other programs: .txt (one per line), .csv, .json or .parquet, with names as they are on disk."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hirl.data.sources.escape import one_line
from hirl.explore.collection import Collection
from hirl.features.feature_files import import_parquet
from hirl.files import atomic_write, check_writable

KINDS = (".txt", ".csv", ".json", ".parquet")
Rows = Sequence[Mapping[str, Any]]


def check_list(file: Path) -> None:
    """Raise a ValueError if the file's name does not end in a list format; to be called before the work."""
    if file.suffix.lower() not in KINDS:
        raise ValueError(f"the list of files is {str(file)!r}, but must end in one of {', '.join(KINDS)}")
    if file.suffix.lower() == ".parquet":
        import_parquet(file, instead=".csv")
    check_writable(file)


def has_line_break(files: Sequence[str]) -> bool:
    """Whether a name has a line break, which a .txt file cannot hold."""
    return any("\n" in file or "\r" in file for file in files)


def write_list(file: Path, rows: Rows, columns: Sequence[str] = ()) -> None:
    """Write the rows, each with at least `file`, in the format of the suffix; a .txt file holds the files only.

    `columns`: their names, for a table without rows.

    Bytes of a name that are not UTF-8 stay as they are in .txt and .csv; in .json they are Python's surrogates, which
    `os.fsencode` turns back; .parquet holds UTF-8 only. A line break in a name is possible in all formats but .txt.
    """
    content = _content(file, rows, columns)
    with atomic_write(file) as aside:
        aside.write_bytes(content)


def check_unchanged(file: Path, rows: Rows | None, columns: Sequence[str] = ()) -> None:
    """Raise a ValueError if the list exists with other content, which a user may have edited.

    `rows`: what would be written, or None if the list would be removed.
    """
    if file.is_file() and (rows is None or file.read_bytes() != _content(file, rows, columns)):
        raise ValueError(
            f"{str(file)!r} exists already, with other content: move it away, name another --out, or add --overwrite"
        )


def _content(file: Path, rows: Rows, columns: Sequence[str]) -> bytes:
    check_list(file)
    columns = list(rows[0]) if rows else columns
    kind = file.suffix.lower()
    if kind == ".txt":
        names = [str(row["file"]) for row in rows]
        if has_line_break(names):
            broken = next(name for name in names if has_line_break([name]))
            raise ValueError(
                f"{one_line(broken)} has a line break in its name, but must not: write a .csv or .json file instead"
            )
        text = "".join(f"{name}\n" for name in names)
    elif kind == ".csv":
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\n")
        if columns:
            writer.writerow(columns)
            writer.writerows([*row.values()] for row in rows)
        text = buffer.getvalue()
    elif kind == ".json":
        text = json.dumps([dict(row) for row in rows], indent=1) + "\n"
    else:
        return _parquet(file, rows, columns)
    return os.fsencode(text)


def _parquet(file: Path, rows: Rows, columns: Sequence[str]) -> bytes:
    parquet = import_parquet(file, instead=".csv")
    import pyarrow

    buffer = io.BytesIO()
    try:
        parquet.write_table(pyarrow.table({name: [row[name] for row in rows] for name in columns}), buffer)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{one_line(str(error.object))} has a name that is not UTF-8, which {str(file)!r} cannot hold: write a "
            ".csv or .json file instead"
        ) from error
    return buffer.getvalue()


def write_links(folder: Path, files: Sequence[str]) -> None:
    """Fill a new folder with links to the files, numbered, since two files may have the same name."""
    for file in files:
        if not Path(file).is_file():
            raise ValueError(f"{one_line(file)} is not a file, so there is nothing to link to: write a list instead")
    width = len(str(len(files)))
    for number, file in enumerate(files):
        name = Path(file).name
        (folder / f"{number:0{width}d}_{name}").symlink_to(Path(file).resolve())


def image_rows(
    collection: Collection, images: Sequence[int] | None = None, *, names: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """A row per image, by default of all: its path through the tree, with confidence.

    file           the image
    row            its index in the data set, and its row in the output of `hirl embed`
    level_0 …      the node at each level of the tree, fine → coarse, by its name in `names` or as level-number, "2-17"
    confidence_0 … the margin of its path over the best path through another node of the level; empty if there is none
    """
    chosen, names, tree = list(range(len(collection)) if images is None else images), names or {}, collection.tree
    leaves = tree.leaves[chosen]
    nodes, margins = tree.path(leaves).tolist(), tree.margins(collection.z[0][chosen], leaves).tolist()
    rows: list[dict[str, Any]] = []
    for image, path, sure in zip(chosen, nodes, margins, strict=True):
        row: dict[str, Any] = {"file": collection.images.path(image), "row": int(collection.rows[image])}
        keys = [f"{level}-{node}" for level, node in enumerate(path)]
        row |= {f"level_{level}": names.get(key, key) for level, key in enumerate(keys)}
        row |= {f"confidence_{level}": round(of, 6) if math.isfinite(of) else None for level, of in enumerate(sure)}
        rows.append(row)
    return rows
