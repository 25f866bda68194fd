"""The tree of a collection, which is given, the run's own, restored from stored paths, or new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.features.embedding import Embedding, tree_of_paths
from hirl.features.open_encoder import Encoder
from hirl.hierarchy.builder import POOLED_FEATURES, HierarchicalKMeans
from hirl.hierarchy.clusters import TooFewDirections
from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.levels import FEWEST, levels_by_number
from hirl.hierarchy.tree import NO_LEAF, PrototypeTree
from hirl.terminal.progress import Progress


class CollectionSource(NamedTuple):
    """All images, readable or not, and their features.

    path     as the user gave it
    kept_in  the folder that keeps the tree of images without a run
    cache    the folder of the features
    """

    path: Path
    name: str
    images: ImageSet
    embedding: Embedding
    encoder: Encoder | None = None
    kept_in: Path | None = None
    cache: Path | None = None


def collection_tree(
    source: CollectionSource,
    given: PrototypeTree | None,
    file: str | None,
    rows: Tensor,
    z0: Tensor,
    levels: Sequence[int] | None,
    progress: Progress,
) -> tuple[PrototypeTree, str]:
    """The tree with the leaves of these rows, and a note if it is not the run's own; `file`: of the `given` tree."""
    # Prototypes are in the space of z⁰: without z⁰, only the paths of a run's tree can be used.
    own = source.encoder.tree if source.encoder is not None and source.embedding.z else None
    tree = own if given is None else given
    path = None if source.embedding.path is None else source.embedding.path[rows]
    if tree is not None and levels is not None:
        raise ValueError(f"levels is {tuple(levels)}, but must not be given here: {source.path} has a tree already")
    if tree is not None and z0.shape[1] != tree.dim:
        raise ValueError(
            f"the tree's prototypes have {tree.dim} columns, but must have {z0.shape[1]}, as features of {source.path}"
        )
    if given is not None:
        note = "the tree is as given" if file is None else f"the tree is that of {file}"
        return _with_leaves(given, len(source.images), rows, z0, note)
    if path is not None and levels is None:
        if own is not None:
            return replace(own, leaves=path[:, 0].contiguous()), ""
        return tree_of_paths(source.embedding, path, z0), ""

    build = HierarchicalKMeans() if source.embedding.z else POOLED_FEATURES

    def report(level: int, step: int, _done: int) -> None:
        progress(f"level {level} of the tree", step, build.iterations)

    built = _default_tree(build, z0, report) if levels is None else build(z0, tuple(levels), progress=report)
    return built, tree_origin(source, built)


def _default_tree(build: HierarchicalKMeans, z0: Tensor, report: TreeProgress) -> PrototypeTree:
    """A tree with levels for the number of images, or of different ones if most are copies; of one leaf if few are."""
    different = len(z0)
    while different >= FEWEST:
        try:
            return build(z0, levels_by_number(different), progress=report)
        except TooFewDirections as error:
            different = min(error.different, different - 1)
    return build(z0, (1,), progress=report)


def tree_origin(source: CollectionSource, tree: PrototypeTree) -> str:
    """Describes which features a tree that is not a run's own was built over."""
    sizes = " › ".join(f"{nodes:,}" for nodes in reversed(tree.levels))  # coarse to fine, as on the tree page
    if source.encoder is not None and source.encoder.run is None:
        known = source.encoder.provenance
        by = source.encoder.name if known is None else f"{source.encoder.name} ({known})"
        return f"a tree of {sizes} nodes over features of {by}; nothing was trained on {source.path}"
    return f"{source.path} has no tree: this one, of {sizes} nodes, was built over its features"


def _with_leaves(tree: PrototypeTree, count: int, rows: Tensor, z0: Tensor, note: str) -> tuple[PrototypeTree, str]:
    """The tree with leaves of the given rows. Rows that it was not built over are assigned, which the note mentions.

    `count`: the number of all rows; a tree over as many has their leaves already. `rows`: those to find leaves for.
    """
    if len(tree.leaves) == count:
        leaves = tree.leaves[rows]
        absent = leaves == NO_LEAF
        if absent.any():
            leaves[absent] = tree.assign(z0[absent])
            note = f"{note}; images that are not in it ({int(absent.sum()):,}) are assigned to its leaves"
        return replace(tree, leaves=leaves), note
    note = f"{note}, built over {len(tree.leaves):,} images; the {len(rows):,} images here are assigned to its leaves"
    return replace(tree, leaves=tree.assign(z0)), note
