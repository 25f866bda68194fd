"""`hirl export` of a tree: Newick, JSON for d3, a linkage matrix, GraphML, numpy's arrays, or a table of its images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from hirl.explore.collection import Collection, open_collection
from hirl.explore.tree_page import read_names
from hirl.export.image_table import KINDS, write_table
from hirl.export.newick import write_newick
from hirl.export.tree_formats import to_linkage, to_networkx, to_numpy
from hirl.export.tree_outline import EXEMPLARS, TreeOutline
from hirl.files import atomic_write
from hirl.hierarchy.tree import PrototypeTree

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
) -> TreeOutline:
    """Write a tree for other programs: of a run, with files that stand for each node, or of a file of `hirl cluster`.

    `names`: names of nodes, exported by the tree page as JSON.
    """
    target = Path(out)
    check_tree_export(to, target)
    collection: Collection | None = None
    if isinstance(source, PrototypeTree):
        tree = source
    elif Path(source).suffix == ".safetensors":
        tree = PrototypeTree.load(source)
    else:
        collection = open_collection(source)
        tree = collection.tree
    given = {} if names is None else read_names(Path(names), tree)
    exemplars = {} if collection is None else find_exemplars(collection)
    outline = TreeOutline.of_tree(tree, names=given, exemplars=exemplars)
    if to == TABLE:
        if collection is None:
            raise ValueError("a tree file does not know its images: give a run or a file of features for a table")
        write_table(collection, target, names=given)
        return outline
    with atomic_write(target) as aside:
        WRITERS[to].write(outline, tree, aside)
    return outline


def check_tree_export(to: str, out: Path) -> None:
    """Raise a ValueError if there is no such format, or the name is not one of its files."""
    if to not in TREE_TARGETS:
        raise ValueError(f"there is no format {to!r} for trees: choose one of {', '.join(TREE_TARGETS)}")
    suffixes = KINDS if to == TABLE else (WRITERS[to].suffix,)
    if out.suffix not in suffixes:
        raise ValueError(f"a tree as {to} is a file named *{' or *'.join(suffixes)}, not {str(out)!r}")


def find_exemplars(collection: Collection, count: int = EXEMPLARS) -> dict[str, list[str]]:
    """By level and number, the files of a node's most typical images."""
    typical, path = collection.typicality().numpy(), collection.tree.path(collection.tree.leaves).numpy()
    found: dict[str, list[str]] = {}
    for level in range(path.shape[1]):
        for image in np.lexsort((-typical[:, level], path[:, level])).tolist():
            files = found.setdefault(f"{level}-{path[image, level]}", [])
            if len(files) < count:
                files.append(collection.images.path(image))
    return found


def _write_text(text: str, out: Path) -> None:
    out.write_bytes(text.encode("utf-8", "surrogateescape"))


def _write_graphml(outline: TreeOutline, _tree: PrototypeTree, out: Path) -> None:
    import networkx

    networkx.write_graphml(to_networkx(outline), out)


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
