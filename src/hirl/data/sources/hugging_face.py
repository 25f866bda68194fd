"""Hugging Face `datasets`: loaded objects, saved folders and folders of parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources.decode import MAX_BYTES
from hirl.data.sources.escape import one_line
from hirl.data.sources.folder_labels import given_labels
from hirl.data.sources.image_set import BadImage, ImageSet, LabelNames
from hirl.data.sources.splits import choose_split, leading_split, no_splits

PARQUET = ".parquet"


@dataclass(kw_only=True, eq=False, repr=False)
class HuggingFaceImages(ImageSet):
    """Rows of a `datasets.Dataset`; images are decoded when they are read."""

    rows: Any
    column: str

    def __post_init__(self) -> None:
        self.fingerprint = getattr(self.rows, "_fingerprint", None)  # the library's own hash of the rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:
        self._check(index)
        stored = self.rows[int(index)][self.column]
        if not stored or not (stored.get("bytes") or stored.get("path")):
            raise BadImage(index, self.path(index), "the row has no image")
        data = stored["bytes"]
        if data is None:
            path = Path(stored["path"])
            try:
                if path.stat().st_size > MAX_BYTES:
                    raise BadImage(index, str(path), f"it exceeds the limit of {MAX_BYTES:,} bytes")
                data = path.read_bytes()
            except OSError as error:
                raise BadImage(index, str(path), error.strerror or type(error).__name__) from error
        return self._decode(data, index, shorter)


def is_hugging_face(source: object) -> bool:
    """Whether `source` is an object of the `datasets` library, without importing the library."""
    return type(source).__module__.split(".")[0] == "datasets"


def open_hugging_face(source: Any, *, split: str | None, channels: int, name: str | None = None) -> ImageSet:
    """A `Dataset`, or the chosen split of a `DatasetDict`."""
    library = _library()
    if isinstance(source, library.DatasetDict):
        name = name or "datasets.DatasetDict"
        part = choose_split(split, list(source), name=name)
        source, name = source[part], f"{name}/{part}"
    elif isinstance(source, library.Dataset):
        name = name or source.info.dataset_name or "datasets.Dataset"
        no_splits(split, name=name)
    else:
        raise ValueError(f"the source is a {type(source).__name__}, which has no index: load it without streaming=True")
    rows = source.with_format(None)
    if len(rows) == 0:
        raise ValueError(f"{name} has no rows")
    column = _image_column(rows, library, name)
    labels, label_names = _labels(rows, library, name)
    encoded = rows.select_columns([column]).cast_column(column, library.Image(decode=False))
    return HuggingFaceImages(
        name=name, rows=encoded, column=column, channels=channels, labels=labels, label_names=label_names
    )


def open_saved(root: Path, *, split: str | None, channels: int) -> ImageSet:
    """A folder written by `save_to_disk`."""
    return open_hugging_face(
        _library().load_from_disk(str(root)), split=split, channels=channels, name=one_line(str(root))
    )


def open_parquet(name: str, files: Path | Sequence[str], *, split: str | None, channels: int) -> ImageSet:
    """Parquet files of a folder, or at paths or URLs, with splits by name (`train-00000.parquet`), as on the hub."""
    library = _library()
    groups: dict[str, list[str]] = {}
    for file in [] if isinstance(files, Path) else files:
        groups.setdefault(leading_split(file.rpartition("/")[2]) or "train", []).append(file)
    place = {"data_dir": str(files)} if isinstance(files, Path) else {"data_files": groups}
    try:
        found = library.load_dataset("parquet", **place)
    except (library.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        reason = one_line(str(error.__cause__ or error)).rstrip(".")
        raise ValueError(f"the parquet files in {name} cannot be read: {reason}") from error
    if len(found) == 1 and split is None:
        return open_hugging_face(next(iter(found.values())), split=None, channels=channels, name=name)
    return open_hugging_face(found, split=split, channels=channels, name=name)


def _library() -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            "this source needs the library datasets, which is not installed: pip install datasets"
        ) from error
    return datasets


def _image_column(rows: Any, library: ModuleType, name: str) -> str:
    """The only column of images: declared as such, or else of encoded bytes."""
    declared = [column for column, kind in rows.features.items() if isinstance(kind, library.Image)]
    found = declared or [column for column, kind in rows.features.items() if _holds_bytes(kind, library)]
    if len(found) != 1:
        problem = f"the image columns {', '.join(map(repr, found))}" if found else "no image column"
        raise ValueError(
            f"{name} has {problem} among {', '.join(map(repr, rows.column_names))}, but must have exactly one"
        )
    return found[0]


def _holds_bytes(kind: Any, library: ModuleType) -> bool:
    stored = kind.get("bytes") if isinstance(kind, dict) else kind
    return isinstance(stored, library.Value) and stored.dtype in ("binary", "large_binary")


def _labels(rows: Any, library: ModuleType, name: str) -> tuple[Tensor | None, LabelNames]:
    """Each ClassLabel column is a level, the one with most classes the finest; otherwise a column `label`."""
    kinds = {column: kind for column, kind in rows.features.items() if isinstance(kind, library.ClassLabel)}
    if kinds:
        columns = sorted(kinds, key=lambda column: -kinds[column].num_classes)
        # The hub marks rows without a class by -1, other programs by null.
        numbers = [[-1 if number is None else number for number in _values(rows, column)] for column in columns]
        table = np.array(numbers, dtype=np.int64).T
        if (table < 0).all():  # a split with withheld labels
            return None, ()
        if (table < 0).any():
            raise ValueError(f"{name} has labels for some rows and -1 or null for others: keep only rows with labels")
        return torch.from_numpy(table), tuple(tuple(kinds[column].names) for column in columns)
    if "label" in rows.column_names:
        return given_labels(np.array(_values(rows, "label")), count=len(rows), name=name)
    return None, ()


def _values(rows: Any, column: str) -> Any:
    return rows.select_columns([column])[:][column]
