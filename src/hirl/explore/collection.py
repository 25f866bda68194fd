"""A collection: readable images with their features and a tree over them, from a run or from files of features."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.data.sources.subset import Subset
from hirl.explore.collection_source import Source, check_row_count, open_source
from hirl.explore.path_tree import tree_of_paths
from hirl.explore.readable import unreadable_images
from hirl.hierarchy.builder import hierarchical_kmeans
from hirl.hierarchy.levels import suggest_levels
from hirl.hierarchy.tree import ABSENT, PrototypeTree
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.runs.open_encoder import Encoder
from hirl.terminal.progress import Progress, no_progress, progress_bars

ITERATIONS = 20  # Lloyd steps per level of a tree that is built here


@dataclass(frozen=True)
class Collection:
    """Row i of every tensor belongs to image i; images that cannot be read are not among them.

    name        what pages and figures call it
    data        the name of the data set
    images      the n readable images
    rows        (n,) the place of each image in the data set, and in what `hirl embed` writes
    features    (n, width) of the encoder
    z           z⁰ … zᴸ, (n, D) each; the features where there is nothing else
    tree        prototypes over z⁰, with `leaves` (n,) of these images
    tree_note   where the tree comes from, when it is not the run's own
    unreadable  the images left out
    folder      the run folder, or the folder of the file of features: where pages are written by default
    encoder     of the run, as it was read; None for a file of features
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
    folder: Path
    encoder: Encoder | None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def run(self) -> Run | None:
        return None if self.encoder is None else self.encoder.run

    @property
    def paths(self) -> list[str]:
        """The file of every image, or its place in a set that has no files."""
        return [self.images.path(index) for index in range(len(self))]

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
    subject: Run | str | os.PathLike[str],
    data: Any = None,
    *,
    split: str | None = None,
    tree: str | os.PathLike[str] | PrototypeTree | None = None,
    levels: Sequence[int] | None = None,
    method: str | type[Method] | None = None,
    device: str | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> Collection:
    """The collection of a run, or of a file of features.

    Args:
        subject: A run, its folder or a checkpoint in it; a .npz file written by `hirl embed`; a .npy file of features.
        data: The images; by default those the run was trained on, or the files that the .npz file names.
        split: The split of the data; by default its training split.
        tree: A file written by `hirl cluster`; by default the run's tree, or a new one where there is none.
        levels: Nodes per level of a new tree, fine to coarse; by default they suit the number of images.
        method: The class of the run's method, where that is not part of hirl.
        device: cpu, cuda …; by default a GPU where there is one.
        workers: Processes that read images.
        quiet: Show no progress.
    """
    found = open_source(subject, data, split, tree, method, device, workers, quiet)
    images = found.images
    check_row_count(found.path, len(found.z[0]), images)
    with nullcontext(no_progress) if quiet else progress_bars() as progress:
        bad = found.without_features()
        if found.encoder is None:  # whoever made the features may have read the images in another way
            bad = _join(unreadable_images(images, progress=progress), bad)
        rows = _without(len(images), bad)
        if len(rows) == 0:
            raise ValueError(f"none of the {len(images):,} images of {images.name} can be read; {bad[0]}")
        if bad:
            warnings.warn(
                f"{len(bad)} of the {len(images):,} images of {images.name} cannot be read and are left out; the "
                f"first: {bad[0]}",
                stacklevel=2,
            )
            images = Subset(images, rows)
        z = tuple(part[rows] for part in found.z)
        path = None if found.paths is None else found.paths[rows]
        made, note = _tree(found, rows, path, z[0], levels, progress)
    return Collection(
        name=found.name,
        data=found.images.name,
        images=images,
        rows=rows,
        features=found.features[rows],
        z=z,
        tree=made,
        tree_note=note,
        unreadable=tuple(bad),
        folder=found.folder,
        encoder=found.encoder,
    )


def _join(*found: Sequence[BadImage]) -> list[BadImage]:
    """All of them in index order, each once."""
    by_index = {bad.index: bad for some in reversed(found) for bad in some}
    return [by_index[index] for index in sorted(by_index)]


def _without(count: int, bad: Sequence[BadImage]) -> Tensor:
    readable = torch.ones(count, dtype=torch.bool)
    readable[[image.index for image in bad]] = False
    return readable.nonzero().flatten()


def _tree(
    found: Source, rows: Tensor, path: Tensor | None, z0: Tensor, levels: Sequence[int] | None, progress: Progress
) -> tuple[PrototypeTree, str]:
    """The tree with the leaves of these rows, and a note where it is not the run's own."""
    tree = found.tree
    if levels is not None and tree is not None:
        raise ValueError(f"levels {tuple(levels)} cannot be given here: {found.path} has a tree already")
    if tree is not None:
        if z0.shape[1] != tree.dim:
            raise ValueError(
                f"the tree's prototypes have {tree.dim} columns, but the features of {found.path} have {z0.shape[1]}"
            )
        if not found.tree_given:
            return replace(tree, leaves=tree.assign(z0)), ""
        note = "the tree is as given" if found.tree_file is None else f"the tree is that of {found.tree_file}"
        return _with_leaves(tree, len(found.images), rows, z0, note)
    if path is not None and levels is None:
        return tree_of_paths(found.path, found.arrays, path, z0), ""

    def report(level: int, step: int, _done: int) -> None:
        progress(f"level {level} of the tree", step, ITERATIONS)

    built = hierarchical_kmeans(z0, tuple(levels or suggest_levels(len(z0))), iterations=ITERATIONS, progress=report)
    return built, f"{found.path} has no tree: this one, of {built.levels} nodes, was built over its features"


def _with_leaves(tree: PrototypeTree, count: int, rows: Tensor, z0: Tensor, note: str) -> tuple[PrototypeTree, str]:
    """A tree over as many rows has their leaves already. Rows that it does not have are assigned, and the note says so.

    `count`: all rows, of which `rows` are those to find leaves for.
    """
    if len(tree.leaves) == count:
        leaves = tree.leaves[rows]
        absent = leaves == ABSENT
        if absent.any():
            leaves[absent] = tree.assign(z0[absent])
            note = f"{note}; images that are not in it ({int(absent.sum()):,}) are assigned to its leaves"
        return replace(tree, leaves=leaves), note
    note = f"{note}, built over {len(tree.leaves):,} images; the {len(rows):,} images here are assigned to its leaves"
    return replace(tree, leaves=tree.assign(z0)), note
