"""A collection: readable images with their features and a tree, opened from a folder of images, a run or a file.

A folder of images needs no run: its features are computed by an encoder, by default the one that comes with hirl, and
kept with the pages in a folder of their own (`work_folder`), which is not a run, since nothing was trained.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data.sources import open_images
from hirl.data.sources.image_set import BadImage, ImageSet, Subset
from hirl.encoders.embedded import DEFAULT_ENCODER
from hirl.encoders.published import NoWeights
from hirl.explore.collection_tree import CollectionSource, collection_tree, tree_origin
from hirl.explore.kept_tree import keep_tree, tree_id
from hirl.explore.readable import unreadable_images, without_features
from hirl.explore.subjects import subject_kind
from hirl.explore.work_folders import take_folder, work_folder
from hirl.features.embedding import Embedding, embed_images, embed_without_heads
from hirl.features.extractor import Extractor
from hirl.features.feature_cache import FeatureCache
from hirl.features.feature_files import check_row_count, images_of_paths, read_features
from hirl.features.image_request import request_images
from hirl.features.open_encoder import Encoder, open_encoder
from hirl.features.preprocessing import describe, find_device, preprocessing_for
from hirl.files import expanded
from hirl.hierarchy.levels import check_levels
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method
from hirl.runs.folder import RunFolder
from hirl.terminal.progress import Progress, no_progress, progress_bars


@dataclass(frozen=True)
class Collection:
    """Row i of every tensor belongs to image i; unreadable images are left out.

    name        what pages and figures call it
    data        the name of the data set
    images      the n readable images
    rows        (n,) the index of each image in the data set, and its row in the output of `hirl embed`
    features    (n, width) of the encoder
    z           z⁰ … zᴸ, (n, D) each; only the features if there are no representations
    tree        prototypes over z⁰, with `leaves` (n,) of these images
    tree_note   where the tree comes from, if it is not the run's own
    unreadable  the images left out
    encoder     the opened encoder of the run or the images; None for a file of features
    kept_id     id of a tree that is kept and updated: the one it got when it was built
    cache       the folder that keeps what is computed about these images; None for a file of features
    """

    name: str
    data: str
    images: ImageSet
    rows: Tensor
    features: Tensor
    z: tuple[Tensor, ...]
    tree: PrototypeTree
    tree_note: str
    unreadable: tuple[BadImage, ...]
    encoder: Encoder | None
    kept_id: str | None = None
    cache: Path | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def run(self) -> RunFolder | None:
        return None if self.encoder is None else self.encoder.run

    @property
    def paths(self) -> list[str]:
        """The file of every image, or its name in a set without files."""
        return [self.images.path(index) for index in range(len(self))]

    @property
    def short_note(self) -> str:
        """The note on the tree without the source of the weights, which is printed when features are computed."""
        known = None if self.encoder is None else self.encoder.provenance
        return self.tree_note.replace(f" ({known})", "")

    @property
    def tree_id(self) -> str:
        """Identifies the tree that node names belong to."""
        return self.kept_id or tree_id(self.tree)

    def typicality(self) -> Tensor:
        """(n, L): the cosine between z⁰ of each image and each prototype on its path, fine → coarse."""
        path = self.tree.path(self.tree.leaves)
        typical = torch.empty(path.shape)
        for some in torch.arange(len(self)).split(4096):
            unit = F.normalize(self.z[0][some].float(), dim=1)
            for level, nodes in enumerate(self.tree.prototypes):
                typical[some, level] = (unit * nodes.float()[path[some, level]]).sum(1)
        return typical


def open_collection(
    subject: RunFolder | str | os.PathLike[str],
    data: Any = None,
    *,
    encoder: Any = None,
    split: str | None = None,
    tree: str | os.PathLike[str] | PrototypeTree | None = None,
    levels: Sequence[int] | None = None,
    anew: bool = False,
    method: str | type[Method] | None = None,
    device: str | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> Collection:
    """The collection of a folder of images, of a run, or of a file of features.

    Args:
        subject: A folder of images or a data set's name; a run, its folder or a checkpoint in it; a file of `hirl
            embed`; a .npy file of features.
        encoder: For images: a run, a file of weights, a timm name or `torchvision:NAME`; by default the encoder that
            comes with hirl.
        data: The images; by default those the run was trained on, or those that the file of features names.
        split: The split of the data; by default its training split.
        tree: A file written by `hirl cluster`; by default the run's tree, or a new one if there is none.
        levels: Nodes per level of a new tree, fine to coarse; by default they suit the number of images.
        anew: For images: build a new tree instead of updating the one that was built last time.
        method: The class of the run's method, if it is not part of hirl.
        device: cpu, cuda …; by default a GPU if there is one.
        workers: Processes that read images.
        quiet: Show no progress.
    """
    tree_file = os.fspath(tree) if isinstance(tree, str | os.PathLike) else None
    given = PrototypeTree.load(tree_file) if tree_file is not None else tree
    assert given is None or isinstance(given, PrototypeTree)
    with nullcontext(no_progress) if quiet else progress_bars() as progress:
        source = _open_source(subject, data, encoder, split, levels, method, device, workers, progress)
        images, embedding = source.images, source.embedding
        rows, unreadable = _readable_rows(source, progress)
        features = embedding.finest if embedding.features is None else embedding.features
        z = tuple(level[rows] for level in embedding.z or (features,))
        build = partial(collection_tree, source, given, tree_file, rows, z[0], levels, progress)
        if source.kept_in is None or given is not None:
            identity, (made, note) = None, build()
        else:  # a folder of images keeps its tree
            assert source.encoder is not None
            files = [images.path(index) for index in rows.tolist()]
            anew = anew or levels is not None
            sha256 = source.encoder.sha256
            root = os.fspath(subject) if isinstance(subject, str | os.PathLike) else ""
            kept, changes = keep_tree(source.kept_in, sha256, files, z[0], lambda: build()[0], anew=anew, root=root)
            made, identity, note = kept.tree, kept.identity, tree_origin(source, kept.tree) + changes
    return Collection(
        name=source.name,
        data=images.name,
        images=Subset(images, rows) if unreadable else images,
        rows=rows,
        features=features[rows],
        z=z,
        tree=made,
        tree_note=note,
        unreadable=unreadable,
        encoder=source.encoder,
        kept_id=identity,
        cache=source.cache,
    )


def _open_source(
    subject: RunFolder | str | os.PathLike[str],
    data: Any,
    encoder: Any,
    split: str | None,
    levels: Sequence[int] | None,
    method: str | type[Method] | None,
    device: str | None,
    workers: int | None,
    progress: Progress,
) -> CollectionSource:
    """All images and their features: read from a file or the cache, or computed by the encoder."""
    kind = subject_kind(subject)
    if kind != "images" and encoder is not None:
        raise ValueError(f"encoder is {encoder!r}, but must not be given here: {subject} has its own features")
    if kind == "images" and data is not None:
        raise ValueError(f"data is {data!r}, but must not be given here: {subject} is itself a set of images")
    if kind == "features":
        return _open_file(expanded(subject), data, split)  # type: ignore[arg-type]
    try:
        opened = open_encoder(subject if kind == "run" else encoder or DEFAULT_ENCODER, method=method)
    except NoWeights as error:
        raise ValueError(error.advise("--encoder FILE")) from error
    request = request_images(opened, data if kind == "run" else subject, split=split)
    folder = work_folder(subject, encoder) if kind == "images" or opened.run is None else opened.run.folder
    place = find_device(device)
    with warnings.catch_warnings():  # the collection reports unreadable images itself
        warnings.filterwarnings("ignore", message=".*could not be read")
        images = request.train()
        if levels is not None:  # checked before features are computed
            check_levels(levels, len(images))
        preprocessing = preprocessing_for(opened, images, device=place, workers=workers)
        if opened.provenance is not None and progress is not no_progress:
            print(describe(opened, preprocessing))
        if kind == "images":  # the folder is made once the images are found
            take_folder(folder, subject, encoder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        cache = FeatureCache(folder / "features", by_image=opened.run is None)  # a run's results depend on no history
        extractor = Extractor(opened, preprocessing, cache, method=method, progress=progress)
        if opened.run is None or opened.has_heads:
            embedding = embed_images(extractor, images)
        else:
            file = opened.run.checkpoint_file
            warnings.warn(
                f"{str(file)!r}, which holds the heads, is {'damaged' if file.is_file() else 'missing'}: the encoder's "
                "pooled features are used instead of z0 and the levels",
                stacklevel=2,
            )
            embedding = embed_without_heads(extractor, images, trained_on=data is None and split is None)
    path = folder if kind == "run" else Path(images.name)
    kept_in = folder if opened.run is None else None
    return CollectionSource(path, path.resolve().name, images, embedding, opened, kept_in, folder / "features")


def _readable_rows(source: CollectionSource, progress: Progress) -> tuple[Tensor, tuple[BadImage, ...]]:
    """(n,): the images that can be read and have features; and the others, which a warning reports."""
    images = source.images
    bad = without_features(images, source.embedding)
    if source.encoder is None:  # the features may have been computed with another image reader
        bad |= {one.index: one for one in unreadable_images(images, progress=progress)}
    readable = torch.ones(len(images), dtype=torch.bool)
    readable[list(bad)] = False
    rows = readable.nonzero().flatten()
    unreadable = tuple(bad[index] for index in sorted(bad))
    if len(rows) == 0:
        raise ValueError(f"none of the {len(images):,} images of {images.name} can be read; {unreadable[0]}")
    if unreadable:
        warnings.warn(
            f"{len(unreadable)} of the {len(images):,} images of {images.name} cannot be read and are left out; the "
            f"first: {unreadable[0]}",
            stacklevel=3,
        )
    return rows, unreadable


def _open_file(file: Path, data: Any, split: str | None) -> CollectionSource:
    arrays = read_features(file)
    images = images_of_paths(file, arrays) if data is None else open_images(data, split=split)
    embedding = Embedding.of_arrays(arrays)
    check_row_count(file, len(embedding.finest), images)
    return CollectionSource(file, file.stem, images, embedding)
