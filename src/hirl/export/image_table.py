"""`--to table`: one row per image, for pandas, FiftyOne and spreadsheets: its path and how sure that is.

file           the image
row            its place in the data set, and in what `hirl embed` writes
level_0 …      the node at each level of the tree, fine → coarse, as level-number or by its name
confidence_0 … the margin of its path over the best one through another node of the level
group, keep    with the lists of `hirl duplicates`: the group of copies it belongs to, and whether it is the one to keep
chosen         with lists of `hirl sample`: whether it is in the last one
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hirl.explore.collection import Collection
from hirl.explore.file_lists import write_list
from hirl.export.missing import import_or_explain
from hirl.files import atomic_write

GROUPS = Path("duplicates") / "groups.json"
KINDS = (".csv", ".parquet")


def write_table(collection: Collection, out: Path, *, names: Mapping[str, str] | None = None) -> list[str]:
    """Write the table, and return the names of its columns."""
    rows = image_rows(collection, names=names)
    if out.suffix == ".csv":
        write_list(out, rows)
        return list(rows[0])
    pyarrow = import_or_explain("pyarrow", "parquet")
    parquet = import_or_explain("pyarrow.parquet", "parquet")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["file"] = [file.encode("utf-8", "backslashreplace").decode() for file in columns["file"]]
    with atomic_write(out) as aside:
        parquet.write_table(pyarrow.table(columns), aside)
    return list(rows[0])


def image_rows(collection: Collection, *, names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The rows of the table, in the order of the collection."""
    names = names or {}
    paths, nodes = collection.paths, collection.tree.path(collection.tree.leaves).tolist()
    sure = collection.tree.margins(collection.z[0], collection.tree.leaves).tolist()
    folder = None if collection.run is None else collection.run.folder
    groups, chosen = (None, None) if folder is None else (_groups(folder / GROUPS), _chosen(folder))
    rows: list[dict[str, Any]] = []
    for file, row, path, confidence in zip(paths, collection.rows.tolist(), nodes, sure, strict=True):
        found: dict[str, Any] = {"file": file, "row": row}
        keys = [f"{level}-{node}" for level, node in enumerate(path)]
        found |= {f"level_{level}": names.get(key, key) for level, key in enumerate(keys)}
        found |= {f"confidence_{level}": round(value, 6) for level, value in enumerate(confidence)}
        if groups is not None:
            found |= groups.get(file, {"group": None, "keep": True})
        if chosen is not None:
            found["chosen"] = file in chosen
        rows.append(found)
    return rows


def _groups(file: Path) -> dict[str, dict[str, Any]] | None:
    """By file its group of copies, and whether it is the one to keep; None without a list."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {entry["file"]: {"group": entry["group"], "keep": entry["action"] == "keep"} for entry in entries}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(file)!r} is not a list that hirl duplicates wrote: write it again") from error


def _chosen(folder: Path) -> set[str] | None:
    """The files of the newest list of `hirl sample` in the run folder; None without one."""
    lists = sorted(folder.glob("sample_*.txt"), key=lambda file: file.stat().st_mtime)
    if not lists:
        return None
    return set(lists[-1].read_text(encoding="utf-8", errors="surrogateescape").splitlines())
