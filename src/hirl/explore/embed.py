"""Images as arrays in a file: an encoder's pooled features, and a run's z⁰…zᴸ and paths through its tree."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hirl.data.sources.image_set import ImageSet
from hirl.evals.extractor import Extractor, check_features, check_same, preprocessing_for
from hirl.evals.feature_cache import FeatureCache
from hirl.evals.images import request_images
from hirl.files import atomic_write, check_writable
from hirl.hierarchy.tree import ABSENT
from hirl.methods.base import Method
from hirl.runs.open_encoder import find_device, open_encoder
from hirl.terminal.progress import no_progress, progress_bars

if TYPE_CHECKING:
    from pyarrow import Table

Arrays = dict[str, np.ndarray]
KINDS = (".npz", ".parquet")
NOT_ROWS = ("classes_", "tree_")  # how the names of arrays begin that have no row per image


def embed(
    subject: Any,
    data: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    split: str | None = None,
    backbone: str | None = None,
    backbone_args: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    method: str | type[Method] | None = None,
    device: str | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> Arrays:
    """Embed images with an encoder, write them to `out`, a .npz or .parquet file, and return them as arrays by name.

    image     (N,) the path of each image
    readable  (N,) whether it could be read; if not, its features and z are NaN and its path is −1
    features  (N, width) of the encoder
    z0 … zL   (N, D) of the method's head and of the heads of the levels; only a run has them, and a baseline z0 alone
    path      (N, L) nodes of the run's tree, fine → coarse, if there is a tree; not in a .parquet file are its
              tree_levels, (L,) nodes per level, and tree_parents_0 …, the parent of each node of a level but the last
    labels    (N, levels), the finest first, and classes_0 …, the class names of each level, if there are labels

    Args:
        subject: A run, its folder or checkpoint, a file of weights, a timm name, `torchvision:NAME`, a module, or an
            encoder that is open already.
        data: The images; by default those the run was trained on.
        out: The file; a .parquet file has a row per image, with its classes by name.
        split: The split of the data; by default its training split.
        backbone: The network's timm or torchvision name, for a file of weights that does not name it.
        backbone_args: Further arguments of the timm or torchvision network.
        weights: A file of weights for a network given by name; by default its weights are random.
        image_size: Side of the images in pixels; by default the run's, else that of small images, else 224.
        channels: Channels of the images; by default the run's, else 3.
        mean: Subtracted from each channel, in [0, 1]; by default as in the run's training, else ImageNet's.
        std: Divides each channel.
        method: The class of the run's method, if it is not part of hirl.
        device: cpu, cuda …; by default a GPU if there is one.
        workers: Processes that read images.
        quiet: Print no progress.
    """
    network: dict[str, Any] = {"backbone": backbone, "backbone_args": backbone_args, "weights": weights}
    encoder = open_encoder(subject, **network, channels=channels, method=method)
    run = encoder.run
    if method is not None and run is None:
        raise ValueError(f"method {method!r} cannot be given here: only a run has one")
    check_same(encoder, image_size=image_size, channels=channels, mean=mean, std=std)
    target = None if out is None else Path(out)
    if target is not None:
        check_target(target)
    images = request_images(encoder, data, split=split, channels=channels).train()
    preprocessing = preprocessing_for(
        encoder, images, image_size=image_size, mean=mean, std=std, device=find_device(device), workers=workers
    )
    cache = FeatureCache(None if run is None else run.features_folder)
    with nullcontext(no_progress) if quiet else progress_bars() as progress:
        extractor = Extractor(encoder, preprocessing, cache, method=method, progress=progress)
        check_features(extractor, images.channels)
        features, readable = extractor.features(images), extractor.readable(images)
        z = None if run is None else extractor.representations(images)  # (N, 1 + L, D)
    arrays: Arrays = {"image": np.array([images.path(index) for index in range(len(images))])}
    arrays |= {"readable": readable.numpy(), "features": features.numpy()}
    if z is not None:
        arrays |= {f"z{level}": z[:, level].numpy() for level in range(z.shape[1])}
    tree = encoder.tree
    if tree is not None and z is not None:
        path = torch.full((len(images), len(tree.levels)), ABSENT)
        path[readable] = tree.path(tree.assign(z[readable, 0]))
        arrays |= {"path": path.numpy(), "tree_levels": np.array(tree.levels)}
        arrays |= {f"tree_parents_{level}": parents.cpu().numpy() for level, parents in enumerate(tree.parents)}
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
        elif not name.startswith(NOT_ROWS):
            columns[name] = pyarrow.array(array)
    return pyarrow.table(columns)
