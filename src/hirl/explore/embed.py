"""A run's representations of images, as arrays in a file: pooled features, z⁰…zᴸ and each image's path in the tree."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hirl.data.sources.image_set import ImageSet
from hirl.evals.extractor import Extractor, preprocessing_for
from hirl.evals.feature_cache import FeatureCache
from hirl.evals.images import request_images
from hirl.files import atomic_write, check_writable
from hirl.hierarchy.tree import ABSENT
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.runs.open_encoder import find_device, open_encoder
from hirl.runs.stored import find_tree
from hirl.terminal.progress import no_progress, progress_bars

if TYPE_CHECKING:
    from pyarrow import Table

Arrays = dict[str, np.ndarray]
KINDS = (".npz", ".parquet")


def embed(
    run: Run | str | os.PathLike[str],
    data: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    split: str | None = None,
    method: str | type[Method] | None = None,
    device: str | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> Arrays:
    """Embed images with a run, write them to `out`, a .npz or .parquet file, and return them as arrays by name.

    image     (N,) the path of each image
    readable  (N,) whether it could be read; if not, its features and z are NaN and its path is −1
    features  (N, width) of the encoder
    z0 … zL   (N, D) of the method's head and of the heads of the levels; a baseline has z0 alone
    path      (N, L) nodes of the run's tree, fine → coarse, if there is a tree
    labels    (N, levels), the finest first, and classes_0 …, the class names of each level, if there are labels

    Args:
        run: A run or its folder, or a checkpoint in it.
        data: The images; by default those the run was trained on.
        out: The file; a .parquet file has a row per image, with its classes by name.
        split: The part of the data; by default its training part.
        method: The class of the run's method, if it is not part of hirl.
        device: cpu, cuda …; by default a GPU if there is one.
        workers: Processes that read images.
        quiet: Print no progress.
    """
    encoder = open_encoder(run, method=method)
    folder = encoder.run
    if folder is None:
        raise ValueError(f"{encoder.name} is not a run folder, but embed needs the method and the heads of a run")
    target = None if out is None else Path(out)
    if target is not None:
        check_target(target)
    images = request_images(encoder, data, split=split).train()
    preprocessing = preprocessing_for(encoder, images, device=find_device(device), workers=workers)
    cache = FeatureCache(folder.features_folder)
    with nullcontext(no_progress) if quiet else progress_bars() as progress:
        extractor = Extractor(encoder, preprocessing, cache, method=method, progress=progress)
        z = extractor.representations(images)  # (N, 1 + L, D)
        features, readable = extractor.features(images), extractor.readable(images)
    arrays: Arrays = {"image": np.array([images.path(index) for index in range(len(images))])}
    arrays |= {"readable": readable.numpy(), "features": features.numpy()}
    arrays |= {f"z{level}": z[:, level].numpy() for level in range(z.shape[1])}
    tree = find_tree(folder)
    if tree is not None:
        path = torch.full((len(images), len(tree.levels)), ABSENT)
        path[readable] = tree.path(tree.assign(z[readable, 0]))
        arrays["path"] = path.numpy()
    arrays |= _labels(images)
    if target is not None:
        _write(target, arrays)
    return arrays


def check_target(out: Path) -> None:
    """Raise a ValueError if the file could not be written, before the work is done."""
    if out.suffix.lower() not in KINDS:
        raise ValueError(f"embeddings go to a file of one of {', '.join(KINDS)}, not to {str(out)!r}")
    if out.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f"{str(out)!r} needs the library pyarrow, which is not installed: pip install pyarrow, or name "
                "a .npz file"
            ) from error
    check_writable(out)


def _labels(images: ImageSet) -> Arrays:
    if images.labels is None:
        return {}
    named = {f"classes_{level}": np.array(names) for level, names in enumerate(images.label_names)}
    return {"labels": images.labels.numpy()} | named


def _write(out: Path, arrays: Arrays) -> None:
    with atomic_write(out) as aside, aside.open("wb") as file:
        if out.suffix.lower() == ".npz":
            np.savez(file, allow_pickle=False, **arrays)
        else:
            from pyarrow import parquet

            parquet.write_table(_table(arrays), file)


def _table(arrays: Arrays) -> Table:
    """A row per image: vectors as lists of one length, classes by name."""
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
        elif not name.startswith("classes_"):
            columns[name] = pyarrow.array(array)
    return pyarrow.table(columns)
