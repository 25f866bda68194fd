"""Features in files: .npz and .parquet as `hirl embed` writes them, and .npy with a single array.

`FORMATS`, at the end, is the one list of formats, which commands and messages name.
"""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from torch import Tensor

from hirl.data.sources.escape import one_line
from hirl.data.sources.file_images import open_files
from hirl.data.sources.folder_labels import given_labels
from hirl.data.sources.image_set import ImageSet, LabelNames
from hirl.files import CHECKSUM, Damaged, atomic_write, check_writable, verify

if TYPE_CHECKING:
    from pyarrow import Array

Arrays = dict[str, np.ndarray]
NON_ROW_PREFIXES = ("classes_", "tree_")  # of the names of arrays without a row per image
PARQUET_KEY = b"hirl"  # of the arrays without a row per image, as JSON in the metadata of a parquet file
_NOT_A_FILE = re.compile(r"\[\d+\]$")  # how sets without files name their images: shapes[12]


def check_target(out: Path) -> None:
    """Raise a ValueError if features could not be written there; before the work is done."""
    if out.suffix.lower() not in WRITTEN:
        raise ValueError(f"out is {str(out)!r}, but a file of features must end in one of {', '.join(WRITTEN)}")
    if (check := FORMATS[out.suffix.lower()].check) is not None:
        check(out)
    check_writable(out)


def write_features(out: Path, arrays: Arrays) -> None:
    write = FORMATS[out.suffix.lower()].write
    assert write is not None  # as check_target makes sure
    with atomic_write(out, checksum=True) as aside, aside.open("wb") as file:
        write(out, arrays, file)


def read_features(path: Path) -> Arrays:
    """The arrays of a file by name; a .npy file is read as `features`. All must have as many rows."""
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}: features are {FORMATS_HELP}")
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{str(path)!r} is not a file of features: these are {FORMATS_HELP}")
    try:
        verify(path)
    except Damaged as error:
        raise ValueError(f"{error}; write it again with hirl embed") from error
    arrays = FORMATS[path.suffix.lower()].read(path)
    if "features" not in arrays and "z0" not in arrays:
        names = ", ".join(arrays) or "nothing"
        raise ValueError(f"{str(path)!r} holds {names}, but neither features nor z0 as `hirl embed` writes them")
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ValueError(f"{name} of {str(path)!r} is a single value, but must be an array")
    count = len(arrays["features"] if "features" in arrays else arrays["z0"])
    for name, array in arrays.items():
        if name == "features" or (name[0] == "z" and name[1:].isdigit()):
            if array.ndim != 2:
                raise ValueError(f"{name} of {str(path)!r} is of shape {array.shape}, but must be (N, D)")
            if array.dtype.kind != "f":
                raise ValueError(f"{name} of {str(path)!r} is of type {array.dtype}, but must be of a float type")
        elif name == "path" and (array.ndim != 2 or array.dtype.kind not in "iu" or array.min(initial=0) < -1):
            raise ValueError(f"path of {str(path)!r} is {array.dtype} {array.shape}, but must be node numbers (N, L)")
        elif name == "readable" and (array.ndim != 1 or array.dtype.kind != "b"):
            raise ValueError(f"readable of {str(path)!r} is {array.dtype} {array.shape}, but must be truth values (N,)")
        if not name.startswith(NON_ROW_PREFIXES) and len(array) != count:
            raise ValueError(f"{name} of {str(path)!r} has {len(array):,} rows, but the features have {count:,}")
    if "path" in arrays and "tree_levels" in arrays:
        _check_tree(path, arrays)
    return arrays


def _check_tree(file: Path, arrays: Arrays) -> None:
    """Levels and parents must agree with the paths; only they name nodes without images."""
    path, levels = arrays["path"], arrays["tree_levels"]
    shaped = levels.dtype.kind in "iu" and levels.shape == path.shape[1:]
    if not shaped or (levels <= path.max(0, initial=-1)).any():
        raise ValueError(f"tree_levels of {str(file)!r} must be the nodes per level of the tree that path goes through")
    known = path[(path >= 0).all(1)]
    for level, count in enumerate(levels[:-1].tolist()):
        parents = arrays.get(f"tree_parents_{level}")
        if parents is None or parents.dtype.kind not in "iu" or parents.shape != (count,):
            raise ValueError(
                f"tree_parents_{level} of {str(file)!r} must be the parent of each of the {count:,} nodes of level "
                f"{level}"
            )
        if not np.array_equal(parents[known[:, level]], known[:, level + 1]):
            raise ValueError(f"tree_parents_{level} of {str(file)!r} does not agree with path")


def _read_numpy(path: Path) -> Arrays:
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"features": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile) as error:
        kind = ".npz" if path.suffix.lower() == ".npz" else ".npy"
        # numpy reports unknown content as pickled
        unknown = "pickle" in str(error) or "Python objects" in str(error)
        reason = "it is damaged, of another format, or holds objects, which are not read" if unknown else error
        raise ValueError(f"{str(path)!r} is not a {kind} file of numbers: {reason}") from error


def import_parquet(file: Path, *, instead: str = ".npz") -> Any:
    """pyarrow.parquet, or a ValueError that names a format which needs no library."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            f"{str(file)!r} needs the library pyarrow, which is not installed: pip install pyarrow, or name a "
            f"{instead} file"
        ) from error
    return parquet


def _write_parquet(out: Path, arrays: Arrays, file: BinaryIO) -> None:
    """A row per image, with vectors as lists and classes by name."""
    parquet = import_parquet(out)
    import pyarrow

    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        if name == "labels":
            for level, numbers in enumerate(array.T):
                columns[f"label_{level}"] = pyarrow.DictionaryArray.from_arrays(
                    numbers.astype(np.int32), pyarrow.array(arrays[f"classes_{level}"])
                )
        elif array.ndim == 2:
            flat = pyarrow.array(np.ascontiguousarray(array).ravel())
            columns[name] = pyarrow.FixedSizeListArray.from_arrays(flat, array.shape[1])
        elif not name.startswith(NON_ROW_PREFIXES):
            try:
                columns[name] = pyarrow.array(array.tolist() if array.dtype.kind == "U" else array)
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{one_line(str(error.object))} has a name that is not UTF-8, which {str(out)!r} cannot hold: name "
                    "a .npz file"
                ) from error
    rest = {name: array.tolist() for name, array in arrays.items() if name.startswith(NON_ROW_PREFIXES)}
    table = pyarrow.table(columns, metadata={PARQUET_KEY: json.dumps(rest)})
    with parquet.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"checksum": CHECKSUM})  # the last thing in the file but its version


def _read_parquet(path: Path) -> Arrays:
    parquet = import_parquet(path)
    import pyarrow

    try:
        table = parquet.read_table(path)
        about = dict(json.loads((table.schema.metadata or {}).get(PARQUET_KEY, b"{}")))
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is not a .parquet file, or is damaged: {one_line(str(error))}") from error
    rest: dict[str, list[Any]] = {name: values for name, values in about.items() if isinstance(values, list)}
    arrays: Arrays = {name: np.array(values) for name, values in rest.items()}
    labels: list[np.ndarray] = []
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name == f"label_{len(labels)}":
            names = [str(text) for text in column.to_pylist()]
            classes = rest.get(f"classes_{len(labels)}", [])
            if not set(names) <= set(classes):  # of a file that another program wrote
                classes = sorted(set(names))
            arrays[f"classes_{len(labels)}"] = np.array(classes)
            numbers = {text: number for number, text in enumerate(classes)}
            labels.append(np.array([numbers[text] for text in names]))
        else:
            arrays[name] = _column(path, name, column)
    return arrays | ({"labels": np.stack(labels, axis=1)} if labels else {})


def _column(path: Path, name: str, column: Array) -> np.ndarray:
    from pyarrow import types

    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array(column.to_pylist())
    if not (types.is_fixed_size_list(column.type) or types.is_list(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    fixed = types.is_fixed_size_list(column.type)
    widths = {column.type.list_size} if fixed else set(column.value_lengths().to_pylist())
    if column.null_count or len(widths) != 1:
        raise ValueError(f"{name} of {str(path)!r} is of lists of several lengths, but must be of one")
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), *widths)


def check_row_count(path: Path, rows: int, images: ImageSet) -> None:
    """A ValueError if a file of features has more or fewer rows than there are images."""
    if len(images) != rows:
        raise ValueError(
            f"{path} has {rows:,} rows, but {images.name} has {len(images):,} images: each needs one row, in the same "
            "order"
        )


def readable_rows(path: Path, arrays: Arrays) -> np.ndarray | None:
    """The numbers of the rows whose images could be read, if some could not, with a warning; else None."""
    readable = arrays.get("readable")
    if readable is None or readable.all():
        return None
    rows: np.ndarray = readable.nonzero()[0]
    if len(rows) == 0:
        raise ValueError(f"none of the {len(readable):,} images of {str(path)!r} could be read: there are no features")
    warnings.warn(
        f"{len(readable) - len(rows):,} of the {len(readable):,} images of {str(path)!r} could not be read and are "
        "left out",
        stacklevel=2,
    )
    return rows


def images_of_paths(path: Path, arrays: Arrays) -> ImageSet:
    """The files that the array `image` of a file of features names, with its labels."""
    if "image" not in arrays or arrays["image"].dtype.kind != "U":
        raise ValueError(f"{str(path)!r} does not name its images: give the folder they come from with --data")
    names: Sequence[str] = arrays["image"].tolist()
    if names and _NOT_A_FILE.search(names[0]):
        raise ValueError(
            f"{str(path)!r} names its images {names[0]!r} and so on, which are not files: give the data they come from "
            "with --data"
        )
    if names and not Path(names[0]).is_absolute():
        names = _locate_files(path, names)
    labels, classes = _labels(path, arrays)
    return open_files(names, name=str(path), labels=labels, label_names=classes)


def _labels(path: Path, arrays: Arrays) -> tuple[Tensor | None, LabelNames]:
    """The labels (N, levels), of other programs also (N,), or names in place of numbers; and the classes of a level."""
    if "labels" not in arrays:
        return None, ()
    given = arrays["labels"]
    labels, found = given_labels(given, count=len(given), name=str(path))
    classes = list(found)
    for level, names in enumerate(found):
        stored = arrays.get(f"classes_{level}")
        if stored is None or given.dtype.kind == "U":
            continue
        if len(stored) < len(names):
            raise ValueError(
                f"classes_{level} of {str(path)!r} has length {len(stored):,}, but labels go up to {len(names) - 1:,}"
            )
        classes[level] = tuple(map(str, stored))
    return labels, tuple(classes)


def _locate_files(file: Path, names: Sequence[str]) -> Sequence[str]:
    """Relative paths as seen from here; they are relative to the folder of the file or one above it."""
    for folder in (Path(), *file.resolve().parents):
        if any((folder / name).is_file() for name in names):
            return names if folder == Path() else [str(folder / name) for name in names]
    raise ValueError(
        f"the images of {str(file)!r}, such as {one_line(names[0])}, are neither here nor beside the file: give their "
        "folder with --data, or start in the folder where the file was written"
    )


class Format(NamedTuple):
    """A format of feature files: how to read and write it; `check` raises a ValueError if it cannot be written here."""

    read: Callable[[Path], Arrays]
    write: Callable[[Path, Arrays, BinaryIO], None] | None = None
    check: Callable[[Path], object] | None = None


FORMATS = {
    ".npy": Format(_read_numpy),
    ".npz": Format(_read_numpy, lambda _, arrays, file: np.savez(file, allow_pickle=False, **arrays)),
    ".parquet": Format(_read_parquet, _write_parquet, import_parquet),
}
KINDS = tuple(FORMATS)
WRITTEN = tuple(suffix for suffix, form in FORMATS.items() if form.write is not None)
FORMATS_HELP = f"a {' or '.join(WRITTEN)} file of `hirl embed`, or a .npy file of floats of shape (N, D)"
