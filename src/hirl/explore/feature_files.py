"""Features in files: what `hirl embed` writes (.npz), or an array of one's own (.npy)."""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch

from hirl.data.sources.files import FileImages
from hirl.data.sources.image_set import ImageSet
from hirl.explore.embed import NOT_ROWS, Arrays

_NOT_A_FILE = re.compile(r"\[\d+\]$")  # how sets without files name their images: shapes[12]


def read_features(path: Path) -> Arrays:
    """The arrays of a file by name; a .npy file is read as `features`. Rows are checked to be of one number."""
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}: features are a .npy file of shape (N, D) or a .npz file")
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            arrays = {"features": loaded}
        else:
            with loaded:
                arrays = {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        kind = ".npz" if path.suffix.lower() == ".npz" else ".npy"
        raise ValueError(f"{str(path)!r} is not a {kind} file of numbers: {error}") from error
    if "features" not in arrays and "z0" not in arrays:
        names = ", ".join(arrays) or "nothing"
        raise ValueError(f"{str(path)!r} holds {names}, but neither features nor z0 as `hirl embed` writes them")
    count = len(arrays["features"] if "features" in arrays else arrays["z0"])
    for name, array in arrays.items():
        if name == "features" or (name[0] == "z" and name[1:].isdigit()):
            if array.ndim != 2:
                raise ValueError(f"{name} of {str(path)!r} must be one array of shape (N, D), not {array.shape}")
            if array.dtype.kind != "f":
                raise ValueError(f"{name} of {str(path)!r} must be of a float type, not {array.dtype}")
        elif name == "path" and (array.ndim != 2 or array.dtype.kind not in "iu" or array.min(initial=0) < -1):
            raise ValueError(f"path of {str(path)!r} must be an array of node numbers (N, L)")
        elif name == "readable" and (array.ndim != 1 or array.dtype.kind != "b"):
            raise ValueError(f"readable of {str(path)!r} must be an array of truth values (N,), not {array.dtype}")
        if not name.startswith(NOT_ROWS) and len(array) != count:
            raise ValueError(f"{name} of {str(path)!r} has {len(array):,} rows, but the features have {count:,}")
    return arrays


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
    """The files that the array `image` of a .npz file names, with its labels."""
    if "image" not in arrays or arrays["image"].dtype.kind != "U":
        raise ValueError(f"{str(path)!r} does not name its images: give the folder they come from with --data")
    names = [str(name) for name in arrays["image"]]
    if names and _NOT_A_FILE.search(names[0]):
        raise ValueError(
            f"{str(path)!r} names its images {names[0]!r} and so on, which are not files: give the data they come from "
            "with --data"
        )
    parts = [name.rpartition("/") for name in names]
    folders = {folder: number for number, folder in enumerate(dict.fromkeys(folder for folder, _, _ in parts))}
    labels = torch.from_numpy(arrays["labels"]).long() if "labels" in arrays else None
    levels = 0 if labels is None else labels.shape[1]
    return FileImages(
        name=str(path),
        folders=[folder or "." for folder in folders],
        folder_of=np.array([folders[folder] for folder, _, _ in parts]),
        file_names=[name for _, _, name in parts],
        labels=labels,
        label_names=tuple(tuple(map(str, arrays[f"classes_{level}"])) for level in range(levels)),
    )


def one_file(path: str, *, channels: int = 3) -> ImageSet:
    """One image file as a set of images."""
    folder, _, name = path.rpartition("/")
    return FileImages(name=path, folders=[folder or "."], folder_of=np.zeros(1), file_names=[name], channels=channels)
