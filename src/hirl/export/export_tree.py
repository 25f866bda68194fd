"""`hirl export` of a tree: Newick, JSON for d3, a linkage matrix, GraphML, numpy's arrays, or a table of its images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from hirl.data.sources.escape import one_line
from hirl.explore.collection import Collection, open_collection
from hirl.explore.kept_tree import tree_id
from hirl.explore.subjects import default_folder
from hirl.explore.tree_page import read_names
from hirl.export.image_table import SUFFIXES, write_table
from hirl.export.newick import write_newick
from hirl.export.tree_formats import to_linkage, to_networkx, to_numpy
from hirl.export.tree_outline import EXEMPLARS, Node, TreeOutline
from hirl.files import atomic_write
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method

TreeTarget = Literal["newick", "json", "linkage", "graphml", "numpy", "table"]
TABLE = "table"  # a row per image
TREE_TARGETS: tuple[str, ...] = get_args(TreeTarget)


class _Writer(NamedTuple):
    write: Callable[[TreeOutline, PrototypeTree, Path], None]
    suffix: str


def export_tree(
    source: str | os.PathLike[str] | PrototypeTree,
    to: TreeTarget,
    out: str | os.PathLike[str],
    *,
    names: str | os.PathLike[str] | None = None,
    encoder: Any = None,
    method: str | type[Method] | None = None,
) -> TreeOutline:
    """Write a tree for other programs: of a run or of a folder of images, with files that stand for each node; of a
    file of features; or of a file of `hirl cluster`.

    Args:
        source: The run, the images, the features or the tree.
        to: The format.
        out: The file.
        names: Names of nodes, exported by the tree page as JSON.
        encoder: For images: a run, a file of weights, a timm name or `torchvision:NAME`; by default the encoder that
            comes with hirl.
        method: The class of the run's method, if it is not part of hirl.
    """
    target = Path(out)
    check_tree_export(to, target)
    is_file = not isinstance(source, PrototypeTree) and Path(source).suffix == ".safetensors" and Path(source).is_file()
    if encoder is not None and (is_file or isinstance(source, PrototypeTree)):
        raise ValueError(f"encoder is {encoder!r}, but must not be given here: {source} is a tree already")
    if not isinstance(source, PrototypeTree) and Path(source).suffix == ".npy":
        raise ValueError(
            f"{str(source)!r} holds features alone: write their tree with hirl cluster, and export that file"
        )
    if is_file:
        source = PrototypeTree.load(source)  # type: ignore[arg-type]
    collection: Collection | None = None
    if isinstance(source, PrototypeTree):
        tree, identity = source, tree_id(source)
    else:
        collection = open_collection(source, encoder=encoder, method=method)
        tree, identity = collection.tree, collection.tree_id
    given = {} if names is None else read_names(Path(names), identity)
    exemplars = {} if collection is None else find_exemplars(collection)
    outline = TreeOutline.of_tree(tree, names=given, exemplars=exemplars)
    if to == TABLE:
        if collection is None or isinstance(source, PrototypeTree):
            raise ValueError("a tree does not know its images: give a run, a folder of images or a file of features")
        duplicates = default_folder(source, "duplicates", encoder=encoder)
        write_table(collection, target, duplicates=duplicates, names=given)
        return outline
    with atomic_write(target) as aside:
        WRITERS[to].write(outline, tree, aside)
    return outline


def check_tree_export(to: str, out: Path) -> None:
    """Raise a ValueError if there is no such format, or the name is not one of its files."""
    if to not in TREE_TARGETS:
        raise ValueError(f"there is no format {to!r} for trees: choose one of {', '.join(TREE_TARGETS)}")
    suffixes = SUFFIXES if to == TABLE else (WRITERS[to].suffix,)
    if out.suffix not in suffixes:
        raise ValueError(f"a tree as {to} is a file named *{' or *'.join(suffixes)}, not {str(out)!r}")


def find_exemplars(collection: Collection) -> dict[str, list[str]]:
    """By level and number, the files of a node's most typical images."""
    typical, path = collection.typicality().numpy(), collection.tree.path(collection.tree.leaves).numpy()
    found: dict[str, list[str]] = {}
    for level in range(path.shape[1]):
        for image in np.lexsort((-typical[:, level], path[:, level])).tolist():
            files = found.setdefault(f"{level}-{path[image, level]}", [])
            if len(files) < EXEMPLARS:
                files.append(collection.images.path(image))
    return found


def _write_text(text: str, out: Path) -> None:
    out.write_bytes(text.encode("utf-8", "surrogateescape"))


def _write_graphml(outline: TreeOutline, _tree: PrototypeTree, out: Path) -> None:
    import networkx

    def printable(node: Node) -> Node:
        """Without the control characters and bytes that XML has no place for."""
        return replace(node, name=one_line(node.name), exemplars=tuple(map(one_line, node.exemplars)))

    nodes = tuple(tuple(map(printable, level)) for level in outline.nodes)
    networkx.write_graphml(to_networkx(replace(outline, nodes=nodes)), out)


def _write_linkage(outline: TreeOutline, _tree: PrototypeTree, out: Path) -> None:
    with out.open("wb") as file:
        np.save(file, to_linkage(outline))


def _write_arrays(_outline: TreeOutline, tree: PrototypeTree, out: Path) -> None:
    with out.open("wb") as file:
        np.savez(file, allow_pickle=False, **to_numpy(tree))


WRITERS: dict[str, _Writer] = {
    "newick": _Writer(lambda outline, _, out: _write_text(write_newick(outline), out), ".nwk"),
    "json": _Writer(lambda outline, _, out: _write_text(json.dumps(outline.nested(), indent=1), out), ".json"),
    "linkage": _Writer(_write_linkage, ".npy"),
    "graphml": _Writer(_write_graphml, ".graphml"),
    "numpy": _Writer(_write_arrays, ".npz"),
}
