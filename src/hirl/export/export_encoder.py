"""`hirl export`: an encoder in the form that another tool loads by itself, checked against torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hirl.encoders.checkpoints import is_hugging_face_folder
from hirl.encoders.embedded import DEFAULT_ENCODER
from hirl.explore.collection import Collection, open_collection
from hirl.explore.tree_page import read_names
from hirl.export.huggingface_folder import FILES as HUGGINGFACE_FILES
from hirl.export.huggingface_folder import write_huggingface
from hirl.export.network import Export, UnsupportedNetwork, pixel_format, prepare
from hirl.export.onnx_file import write_onnx
from hirl.export.timm_folder import FILES as TIMM_FILES
from hirl.export.timm_folder import write_timm
from hirl.export.torch_export_file import write_torch_export
from hirl.export.torchvision_file import write_torchvision
from hirl.features.open_encoder import open_encoder
from hirl.files import check_replaceable, expanded
from hirl.methods.base import Method
from hirl.runs.folder import RunFolder

Target = Literal["onnx", "torch-export", "timm", "torchvision", "huggingface"]


class _Writer(NamedTuple):
    write: Callable[[Export, Path], float]
    suffix: str  # of a file; empty for a folder
    any_network: bool  # whether it holds any network, and so z⁰…zᴸ and paths as well
    beside: str = ""  # suffix of a second file, written beside the first
    entries: tuple[str, ...] = ()  # what a folder may hold

    def files(self, out: Path) -> list[Path]:
        """All that is written for `out`."""
        return [out, out.with_suffix(self.beside)] if self.beside else [out]


WRITERS: dict[Target, _Writer] = {
    "onnx": _Writer(write_onnx, ".onnx", True),
    "torch-export": _Writer(write_torch_export, ".pt2", True),
    "timm": _Writer(write_timm, "", False, entries=TIMM_FILES),
    "torchvision": _Writer(write_torchvision, ".pth", False, beside=".json"),
    "huggingface": _Writer(write_huggingface, "", True, entries=HUGGINGFACE_FILES),
}


class Written(NamedTuple):
    """What was written, and the largest difference between its own loader's outputs and torch on random images."""

    out: Path
    outputs: tuple[str, ...]
    difference: float


def export_encoder(
    source: Any,
    to: Target,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    levels: bool = False,
    names: str | os.PathLike[str] | None = None,
    encoder: Any = None,
    backbone: str | None = None,
    backbone_args: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    method: str | type[Method] | None = None,
) -> Written:
    """Write an encoder for another tool, and check that the tool's own loader gives the same features as torch.

    Args:
        source: A run, its folder or checkpoint, a file of weights, a timm name, `torchvision:NAME`, a module, an
            encoder that is open already; or, with levels, a folder of images with the tree that `hirl tree` shows.
        to: The tool.
        out: The file (.onnx, .pt2, .pth) or, for timm and huggingface, the folder.
        overwrite: Replace a folder that exists, if it is empty or holds an export to this tool. A file is replaced
            anyway.
        levels: Give z0 … zL, the path through the run's tree and its confidence as well.
        names: Names of the tree's nodes, exported by the tree page as JSON.
        encoder: For a folder of images: a file of weights, a timm name or `torchvision:NAME`; by default the encoder
            that comes with hirl.
        backbone: The network's timm or torchvision name, for a file of weights that does not name it.
        backbone_args: Further arguments of the timm or torchvision network.
        weights: A file of weights for a network given by name; by default its published ones.
        image_size: Side of the images in pixels; by default the run's, else 224.
        channels: Channels of the images; by default the run's, else 3.
        mean: Subtracted from each channel, in [0, 1]; by default as in the run's training, else ImageNet's.
        std: Divides each channel.
        method: The class of the run's method, if it is not part of hirl.
    """
    target = Path(out)
    check_export(to, target, levels=levels)
    if target.is_dir() and not overwrite:
        raise ValueError(f"the folder {str(target)!r} exists already: name another one, or give overwrite=True")
    if own := WRITERS[to].entries:
        check_replaceable(
            target, lambda entry: entry.relative_to(target).as_posix() in own, content=f"an export to {to}"
        )
    opened, tree, identity = None, None, None
    if is_image_folder(source):
        given: dict[str, Any] = {"backbone": backbone, "backbone_args": backbone_args, "weights": weights}
        given |= {"image_size": image_size, "channels": channels, "mean": mean, "std": std}
        collection = _open_images(source, encoder, levels=levels, given=given)
        assert collection.encoder is not None
        opened, tree, identity = collection.encoder, collection.tree, collection.tree_id
        image_size, channels = opened.default_size(collection.images), collection.images.channels
    else:
        if encoder is not None:
            raise ValueError(f"encoder is {encoder!r}, but must not be given here: {source} is itself an encoder")
        opened = open_encoder(
            source, backbone=backbone, backbone_args=backbone_args, weights=weights, channels=channels, method=method
        )
    given_names = None
    if names is not None:
        names_of = identity or opened.tree
        if not levels or names_of is None:
            raise ValueError(f"names {os.fspath(names)!r} are those of a tree's nodes: export a run with levels")
        given_names = read_names(Path(names), names_of)
    pixels = pixel_format(opened, image_size, channels, mean, std)
    export = prepare(opened, pixels, levels=levels, tree=tree, names=given_names, method=method)
    try:
        return Written(target, export.outputs, WRITERS[to].write(export, target))
    except UnsupportedNetwork as error:
        raise ValueError(f"{error}: export it to {_any_network()}, which hold any network") from None


def is_image_folder(source: Any) -> bool:
    """Whether a source is a folder of images, rather than a run or a Hugging Face folder."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = expanded(source)
    return path.is_dir() and not RunFolder(path).exists and not is_hugging_face_folder(path)


def _open_images(source: Any, encoder: Any, *, levels: bool, given: dict[str, Any]) -> Collection:
    """The images with their tree over the features of an encoder without a run."""
    if not levels:
        raise ValueError(
            f"{os.fspath(source)!r} is a folder of images, whose tree is exported with levels: add them, or name an "
            f"encoder such as {DEFAULT_ENCODER}"
        )
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is {value!r}, but must not be given here: the tree was built without it")
    if encoder is not None and open_encoder(encoder).run is not None:
        raise ValueError(f"{encoder} is a run with heads and a tree of its own: export it instead of {source}")
    return open_collection(source, encoder=encoder)


def check_export(to: str, out: Path, *, levels: bool) -> None:
    """Raise a ValueError if the tool cannot hold what is asked for, or the name is not one of its files."""
    if to not in WRITERS:
        raise ValueError(f"there is no target {to!r}: choose one of {', '.join(WRITERS)}")
    writer = WRITERS[to]
    if levels and not writer.any_network:
        raise ValueError(f"{to} holds an encoder alone: export levels to {_any_network()}")
    if writer.suffix and out.suffix != writer.suffix:
        raise ValueError(f"an export to {to} is a file named *{writer.suffix}, not {str(out)!r}")


def _any_network() -> str:
    """The targets that hold any network, for messages."""
    *others, last = [name for name, writer in WRITERS.items() if writer.any_network]
    return f"{', '.join(others)} or {last}"
