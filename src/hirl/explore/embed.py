"""What a run makes of images, as arrays in a file: pooled features, z⁰…zᴸ and each image's path through the tree."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from hirl.data.loader import normalisation
from hirl.data.sources import Skipped, in_memory, open_images
from hirl.data.sources.image_set import ImageSet
from hirl.evals.feature_cache import Shown, Store, extracted
from hirl.files import atomic_write, check_writable
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.runs.open_encoder import device_of, open_encoder
from hirl.runs.representations import load_trained
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
    """Embeds images with a run, writes them to `out`, a .npz or .parquet file, and gives them as arrays by name.

    image     (N,) where each image comes from
    features  (N, width) of the encoder
    z0 … zL   (N, D) of the method's head and of those of the levels; a baseline has z0 alone
    path      (N, L) nodes of the run's tree, fine → coarse, where there is a tree
    labels    (N, levels), the finest first, and classes_0 …, the names of each level's classes, where there are labels

    Args:
        run: A run or its folder.
        data: The images; by default those the run was trained on.
        out: The file; a .parquet file has a row an image, with its classes by name.
        split: The part of the data; by default its training part.
        method: The class of the run's method, where that is not of hirl.
        device: cpu, cuda …; by default a GPU where there is one.
        workers: Processes that read images.
        quiet: No bars.
    """
    opened = open_encoder(run)
    folder = opened.run
    if folder is None or opened.image_size is None:
        raise ValueError(f"{opened.name} is no run, but embed needs the method and the heads of one")
    target = None if out is None else Path(out)
    if target is not None:
        check_target(target)
    if data is None:
        data, split = folder.config["data"], split if split is not None else folder.config.get("split")
    found = open_images(data, split=split, channels=opened.channels or 3)
    skipped = Skipped()
    images = in_memory(found, skipped=skipped)
    if len(skipped):
        warnings.warn(skipped.summary(images.name), stacklevel=2)
    where = device_of(device)
    shown = Shown(opened.image_size, normalisation(images, opened.mean, opened.std), where, workers)
    trained = load_trained(folder, method=method)
    store = Store(folder.features_folder)

    with nullcontext(no_progress) if quiet else progress_bars() as progress:

        def made(kind: str, network: nn.Module, sha256: str) -> Tensor:
            what = f"{kind} of {images.name}"
            return store.kept(
                kind,
                sha256,
                shown,
                images,
                lambda: extracted(network.to(where), images, shown, what=what, progress=progress),
            )

        features = made("features", opened.network, opened.sha256)
        z = made("representations", trained, trained.sha256)  # (N, 1 + L, D)
    arrays: Arrays = {"image": np.array([found.path(index) for index in range(len(found))])}
    arrays |= {"features": features.numpy()}
    arrays |= {f"z{level}": z[:, level].numpy() for level in range(z.shape[1])}
    if folder.tree_file.is_file():
        tree = folder.tree
        arrays["path"] = tree.path(tree.assign(z[:, 0])).numpy()
    arrays |= _labels(images)
    if target is not None:
        _write(target, arrays)
    return arrays


def check_target(out: Path) -> None:
    """A ValueError if nothing could be written there; before the work is done."""
    if out.suffix.lower() not in KINDS:
        raise ValueError(f"embeddings go to a file of one of {', '.join(KINDS)}, not to {str(out)!r}")
    if out.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f"{str(out)!r} asks for the library pyarrow, which is not installed: pip install pyarrow, or name a "
                ".npz file"
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
    """A row an image: vectors as lists of one length, classes by name."""
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
