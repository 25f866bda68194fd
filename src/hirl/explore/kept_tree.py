"""The tree over a folder of images, kept between commands so that nodes keep their numbers, and thus their names.

When images were added or removed, the tree is updated instead of built again, and the changes are reported.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hirl.files import Damaged, read_json, write_json
from hirl.hierarchy.path_steps import update_tree
from hirl.hierarchy.tree import PrototypeTree

TREE, IMAGES = "tree.safetensors", "tree_images.json"
# From this share of new images, or of empty leaves, on, a new tree is suggested, though nodes would be renumbered.
MANY_NEW, MANY_EMPTY = 0.5, 0.1
# If a smaller share of the earlier images is left, the images are treated as another set.
LEAST_KNOWN = 0.3


def tree_id(tree: PrototypeTree) -> str:
    """Identifies a tree: names given to its nodes are meaningless for any other tree."""
    digest = hashlib.sha256()
    for tensor in (*(nodes.float() for nodes in tree.prototypes), *tree.parents):
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()[:16]


def files_below(root: str, files: Sequence[str]) -> list[str]:
    """Names of files relative to a folder, so that they are the same however the folder is named."""
    if not root:
        return list(files)
    prefixes = (f"{root}/", f"{Path(root).expanduser()}/")
    return [next((file[len(prefix) :] for prefix in prefixes if file.startswith(prefix)), file) for file in files]


def kept_files(folder: Path) -> list[str]:
    """The files of the tree kept in a folder; [] if there is none, or the list is damaged."""
    try:
        return [str(file) for file in read_json(folder / IMAGES)["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


@dataclass(frozen=True)
class KeptTree:
    """A tree, the files (n,) of its images, the encoder of their features, and the id it got when it was built."""

    tree: PrototypeTree
    files: tuple[str, ...]
    encoder: str
    identity: str

    @classmethod
    def load(cls, folder: Path, encoder: str, root: str = "") -> KeptTree | None:
        """The tree kept in a folder; None if it is missing, damaged, or over features of another encoder.

        root: the folder that names of files are below
        """
        file = folder / IMAGES
        try:
            found = read_json(file)
            tree = PrototypeTree.load(folder / TREE)
            kept = cls(tree, tuple(files_below(root, found["files"])), found["encoder"], found["id"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = str(error) if isinstance(error, Damaged) else f"the tree in {str(folder)!r} is damaged"
            warnings.warn(f"{problem}; a new tree is built, without the names given to nodes", stacklevel=4)
            return None
        return kept if kept.encoder == encoder and len(kept.files) == len(tree.leaves) else None

    def save(self, folder: Path) -> None:
        about = {"id": self.identity, "encoder": self.encoder, "files": self.files}
        (folder / IMAGES).unlink(missing_ok=True)  # first: an interrupted save must not pair a tree with the wrong list
        self.tree.save(folder / TREE)
        write_json(folder / IMAGES, about)


def keep_tree(
    folder: Path,
    encoder: str,
    files: Sequence[str],
    features: Tensor,
    build: Callable[[], PrototypeTree],
    *,
    anew: bool,
    root: str = "",
) -> tuple[KeptTree, str]:
    """The kept tree, updated to the present images, and a note on the changes; a new tree if there is none.

    If hardly any earlier image is left, the images are another set, such as another split, and get a new tree.

    root: the folder of the images, which names of files are compared relative to
    """
    files = files_below(root, files)
    kept, changes = None if anew else KeptTree.load(folder, encoder, root), ""
    if kept is not None and kept.files == tuple(files):
        return kept, changes
    if kept is not None and len(set(kept.files) & set(files)) >= LEAST_KNOWN * len(kept.files):
        before, kept = kept, replace(kept, tree=update_tree(kept.tree, features), files=tuple(files))
        changes = describe_changes(before, kept)
    else:
        tree = build()
        kept = KeptTree(tree, tuple(files), encoder, tree_id(tree))
    kept.save(folder)
    return kept, changes


def describe_changes(before: KeptTree, after: KeptTree) -> str:
    """How many images were added, removed and moved per level, and which nodes are now empty."""
    place = {file: index for index, file in enumerate(before.files)}
    both = [(place[file], index) for index, file in enumerate(after.files) if file in place]
    added, removed = len(after.files) - len(both), len(before.files) - len(both)
    text = f". It was updated: {added:,} images added, {removed:,} removed; nodes keep their numbers and names"
    if both:
        then, now = torch.tensor(both).T
        moved = (before.tree.image_paths[then] != after.tree.image_paths[now]).float().mean(0)  # (L,)
        shares = ", ".join(f"{100 * share:.1f} % at level {level}" for level, share in enumerate(moved.tolist()))
        text += f". Of the {len(both):,} other images, these shares moved to another node: {shares}"
    emptied = [
        f"{level}-{node}"
        for level in range(len(after.tree.levels))
        for node in ((before.tree.sizes(level) > 0) & (after.tree.sizes(level) == 0)).nonzero().flatten().tolist()
    ]
    if emptied:
        shown = ", ".join(emptied[:5]) + (", …" if len(emptied) > 5 else "")
        text += f". Without images now: {len(emptied)} nodes ({shown})"
    empty = float((after.tree.sizes(0) == 0).float().mean())
    if added > MANY_NEW * len(before.files) or empty > MANY_EMPTY:
        text += ". Much has changed: --anew builds a new tree, with other numbers and without the names given so far"
    return text
