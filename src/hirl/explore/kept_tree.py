"""The tree over a folder of images, kept between commands so that nodes keep their numbers, and thus their names.

When images were added, removed or changed, the tree is updated instead of built again, and the changes are reported.
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

from hirl.encoders.encoder_file import network_hash
from hirl.files import Damaged, expanded, read_json, write_json
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
    prefixes = (f"{root}/", f"{expanded(root)}/")
    return [next((file[len(prefix) :] for prefix in prefixes if file.startswith(prefix)), file) for file in files]


def kept_files(folder: Path) -> list[str]:
    """The files of the tree kept in a folder; [] if there is none, or the list is damaged."""
    try:
        return [str(file) for file in read_json(folder / IMAGES)["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


@dataclass(frozen=True)
class KeptTree:
    """A tree, the files (n,) of its images, the encoder and a hash of their features, and the id it got when built."""

    tree: PrototypeTree
    files: tuple[str, ...]
    encoder: str
    features: str
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
            files = tuple(files_below(root, found["files"]))
            # Lists of development versions lack both hashes.
            kept = cls(tree, files, found["encoder"], found.get("features", ""), found["id"])
            if found.get("tree") not in (None, network_hash(tree.tensors())):
                raise Damaged(f"the tree in {str(folder)!r} is not the one that its list of images belongs to")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = str(error) if isinstance(error, Damaged) else f"the tree in {str(folder)!r} is damaged"
            warnings.warn(f"{problem}; a new tree is built, without the names given to nodes", stacklevel=4)
            return None
        return kept if kept.encoder == encoder and len(kept.files) == len(tree.leaves) else None

    def save(self, folder: Path) -> None:
        """The list has a hash of the tree: after an interrupted save, the two are not taken for a pair."""
        about = {"id": self.identity, "encoder": self.encoder, "features": self.features, "files": self.files}
        self.tree.save(folder / TREE)
        write_json(folder / IMAGES, about | {"tree": network_hash(self.tree.tensors())})


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
    files, hashed = files_below(root, files), network_hash({"features": features})
    kept, changes = None if anew else KeptTree.load(folder, encoder, root), ""
    if kept is not None and (kept.files, kept.features) == (tuple(files), hashed):
        return kept, changes
    known = 0 if kept is None else len(set(kept.files) & set(files))
    # A tree of one node, of two or three images, has no names that are worth keeping.
    if kept is not None and kept.tree.levels != (1,) and known >= LEAST_KNOWN * len(kept.files):
        before = kept
        kept = replace(kept, tree=update_tree(kept.tree, features), files=tuple(files), features=hashed)
        changes = describe_changes(before, kept)
    else:
        tree = build()
        kept = KeptTree(tree, tuple(files), encoder, hashed, tree_id(tree))
    kept.save(folder)
    return kept, changes


def describe_changes(before: KeptTree, after: KeptTree) -> str:
    """How many images were added, removed and moved per level, and which nodes are now empty."""
    place = {file: index for index, file in enumerate(before.files)}
    both = [(place[file], index) for index, file in enumerate(after.files) if file in place]
    added, removed = len(after.files) - len(both), len(before.files) - len(both)
    what, of = "the features of the same files have changed", "images"
    if added or removed:
        what, of = f"{added:,} images added, {removed:,} removed", "other images"
    text = f". It was updated: {what}; nodes keep their numbers and names"
    if both:
        then, now = torch.tensor(both).T
        moved = (before.tree.image_paths[then] != after.tree.image_paths[now]).float().mean(0)  # (L,)
        shares = ", ".join(f"{100 * share:.1f} % at level {level}" for level, share in enumerate(moved.tolist()))
        text += f". Of the {len(both):,} {of}, these shares moved to another node: {shares}"
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
