"""What a collection is made of: all rows and all images, readable or not, of a run or of a file of features."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hirl.data.sources import open_images
from hirl.data.sources.image_set import BadImage, ImageSet
from hirl.evals.images import request_images
from hirl.explore.embed import Arrays, embed
from hirl.explore.feature_files import images_of_paths, one_file, read_features
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.runs.open_encoder import Encoder, open_encoder

FILES = (".npy", ".npz")


@dataclass(frozen=True)
class Source:
    """`path` is what was given; `arrays` are as `hirl embed` writes them.

    `tree`: that of the run, unless another is `tree_given`, from `tree_file` if it was read here.
    """

    path: Path
    name: str
    folder: Path
    encoder: Encoder | None
    images: ImageSet
    arrays: Arrays
    tree: PrototypeTree | None
    tree_given: bool
    tree_file: str | None

    @property
    def z(self) -> tuple[Tensor, ...]:
        names = [f"z{level}" for level in range(len(self.arrays)) if f"z{level}" in self.arrays] or ["features"]
        return tuple(torch.from_numpy(np.array(self.arrays[name])) for name in names)

    @property
    def features(self) -> Tensor:
        return torch.from_numpy(np.array(self.arrays["features"])) if "features" in self.arrays else self.z[0]

    @property
    def paths(self) -> Tensor | None:
        return torch.from_numpy(self.arrays["path"].astype(np.int64)) if "path" in self.arrays else None

    def without_features(self) -> list[BadImage]:
        """The images that could not be read when the features were made."""
        lost = ~self.z[0].isfinite().all(1)
        if "readable" in self.arrays:
            lost |= ~torch.from_numpy(np.array(self.arrays["readable"]))
        if self.paths is not None:
            lost |= (self.paths < 0).any(1)
        return [self._bad(index) for index in lost.nonzero().flatten().tolist()]

    def _bad(self, index: int) -> BadImage:
        """Why it cannot be read, if the file still tells."""
        path = self.images.path(index)
        try:
            one_file(path).read(0)
        except BadImage as bad:
            return BadImage(index, path, bad.reason)
        return BadImage(index, path, "it could not be read when the features were made")


def check_row_count(path: Path, rows: int, images: ImageSet) -> None:
    """A ValueError if a file of features has more or fewer rows than there are images."""
    if len(images) != rows:
        raise ValueError(
            f"{path} has {rows:,} rows, but {images.name} has {len(images):,} images: each needs one row, in the same "
            "order"
        )


def open_source(
    subject: Run | str | os.PathLike[str],
    data: Any,
    split: str | None,
    tree: str | os.PathLike[str] | PrototypeTree | None,
    method: str | type[Method] | None,
    device: str | None,
    workers: int | None,
    quiet: bool,
) -> Source:
    """See `open_collection` for the arguments."""
    tree_file = os.fspath(tree) if isinstance(tree, str | os.PathLike) else None
    given = PrototypeTree.load(tree_file) if tree_file is not None else tree
    assert given is None or isinstance(given, PrototypeTree)
    if isinstance(subject, str | os.PathLike):
        path = Path(os.fspath(subject)).expanduser()
        if path.suffix.lower() in FILES:
            arrays = read_features(path)
            images = images_of_paths(path, arrays) if data is None else open_images(data, split=split)
            return Source(path, path.stem, path.parent, None, images, arrays, given, given is not None, tree_file)
        if _is_tree(path):
            raise ValueError(
                f"{str(path)!r} is a tree without features or images: use it as in hirl tree features.npy "
                f"--data IMAGES --tree {path}"
            )
    encoder = open_encoder(subject, method=method)
    run = encoder.run
    if run is None:
        raise ValueError(
            f"{encoder.name} is not a run folder: write its features with hirl embed, and give the .npz file"
        )
    with warnings.catch_warnings():  # the collection itself reports what it leaves out
        warnings.filterwarnings("ignore", message=".*could not be read")
        images = request_images(encoder, data, split=split).train()
        arrays = embed(encoder, images, method=method, device=device, workers=workers, quiet=quiet)
    tree = given if given is not None else encoder.tree
    name = run.folder.resolve().name
    return Source(run.folder, name, run.folder, encoder, images, arrays, tree, given is not None, tree_file)


def _is_tree(path: Path) -> bool:
    """Whether a file is one that `hirl cluster` wrote."""
    if path.suffix.lower() != ".safetensors" or not path.is_file():
        return False
    try:
        PrototypeTree.load(path)
    except ValueError:
        return False
    return True
