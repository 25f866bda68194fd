"""`--to table`: one row per image, for pandas, FiftyOne and spreadsheets.

file, row, level_0 …, confidence_0 …   as in `hirl.explore.file_lists.image_rows`
group, keep    with the lists of `hirl duplicates`: the group of copies it belongs to, and whether it is the one to keep
chosen         with lists of `hirl sample`: whether it is in the last one
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hirl.explore.collection import Collection
from hirl.explore.file_lists import image_rows, write_list

GROUPS = "groups.json"
SUFFIXES = (".csv", ".json", ".parquet")


def write_table(collection: Collection, out: Path, *, duplicates: Path, names: Mapping[str, str] | None = None) -> None:
    """Write the table; `duplicates`: the folder of `hirl duplicates`, beside which lists of `hirl sample` are."""
    rows = image_rows(collection, names=names)
    groups, chosen = _groups(duplicates / GROUPS), _chosen(duplicates.parent, {row["file"] for row in rows})
    for row in rows:
        if groups is not None:
            row |= groups.get(row["file"], {"group": None, "keep": True})
        if chosen is not None:
            row["chosen"] = row["file"] in chosen
    write_list(out, rows)


def _groups(file: Path) -> dict[str, dict[str, Any]] | None:
    """By file its group of copies, and whether it is the one to keep; None without a list."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {entry["file"]: {"group": entry["group"], "keep": entry["action"] == "keep"} for entry in entries}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(file)!r} is not a list that hirl duplicates wrote: write it again") from error


def _chosen(folder: Path, files: set[str]) -> set[str] | None:
    """The files of the newest list of `hirl sample` in a folder; None without a list of these files."""
    lists = [*folder.glob("sample_*.txt"), *folder.glob("sample_*.csv")]  # .csv if a name has a line break
    newest_first = sorted(lists, key=lambda file: file.stat().st_mtime, reverse=True)
    return next((chosen for chosen in map(_listed, newest_first) if chosen & files), None)


def _listed(file: Path) -> set[str]:
    with file.open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
        if file.suffix == ".csv":
            return {str(row.get("file")) for row in csv.DictReader(lines)}
        return set(lines.read().split("\n"))
