"""Open an encoder from a run, a file of weights, a timm or torchvision name, or a module."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hirl.data.sources.image_set import ImageSet
from hirl.encoders.backbones import UnknownBackbone, make_backbone, patch_size
from hirl.encoders.checkpoints import HF_FILES, is_hugging_face_folder, read_checkpoint
from hirl.encoders.embedded import DEFAULT_ENCODER
from hirl.encoders.encoder_file import (
    EncoderMetadata,
    Weights,
    fit_weights,
    load_metadata,
    load_weights,
    make_encoder,
    network_hash,
)
from hirl.encoders.published import RANDOM_PREFIX, TORCHVISION, named_encoder
from hirl.encoders.torchvision_networks import make_torchvision
from hirl.encoders.weights_source import ImageFormat, Provenance
from hirl.files import expanded
from hirl.hierarchy.tree import PrototypeTree, is_tree
from hirl.methods.base import Method
from hirl.runs.checkpoint import is_checkpoint
from hirl.runs.folder import RunFolder
from hirl.runs.representations import Trained, load_trained
from hirl.runs.stored import find_encoder, find_tree

WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin")


@dataclass(frozen=True)
class Encoder:
    """A frozen network in eval mode, and the preprocessing it was trained with, where that is known.

    Training may replace a run's checkpoint at any time: one that was read for the network is kept in `trained`, so that
    heads and tree are of the same state.
    """

    name: str
    network: nn.Module  # images (B, C, H, W) → features (B, width)
    sha256: str  # of its weights and architecture
    description: dict[str, Any]  # backbone, arguments, source of the weights
    run: RunFolder | None = None
    image_size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    trained: Trained | None = None
    provenance: Provenance | None = None  # where the weights come from; None for a module and what began from nothing
    format: ImageFormat | None = None  # of the images, as the source of the weights prepares them

    def size_for(self, side: int) -> int:
        """The side in pixels at which the encoder sees images of `side` pixels."""
        if self.image_size is not None or self.format is None:
            return self.image_size or side
        return self.format.size_for(side, patch=patch_size(self.network) or 1)

    def default_size(self, images: ImageSet) -> int:
        """The side at which the encoder sees images by default, whether they are in memory or not."""
        return self.size_for(images.default_size if self.format is None else images.pretrained_size)

    @property
    def has_heads(self) -> bool:
        """Whether z⁰…zᴸ can be computed: they need a run's checkpoint, undamaged."""
        return self.trained is not None or (self.run is not None and is_checkpoint(self.run.checkpoint_file))

    def load_trained(self, *, method: str | type[Method] | None = None) -> Trained:
        """The method and heads of the run, see `representations.load_trained`."""
        assert self.run is not None
        return load_trained(self.run, method=method) if self.trained is None else self.trained

    @cached_property
    def tree(self) -> PrototypeTree | None:
        """The run's tree; None if there is no run, or it has none yet."""
        if self.run is None:
            return None
        if self.trained is not None and (self.run.has_own_checkpoint or "state" in self.description):
            return self.trained.tree
        return find_tree(self.run)


def open_encoder(
    source: Any,
    *,
    backbone: str | None = None,
    backbone_args: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    channels: int | None = None,
    method: str | type[Method] | None = None,
) -> Encoder:
    """Open the encoder that `source` names; an open `Encoder` is returned unchanged.

    A run or its folder, which may be unfinished; a checkpoint in a run folder; a file of weights, a checkpoint of
    another project or a Hugging Face folder, with its `backbone` if it cannot be inferred from names and shapes; a
    timm name or `torchvision:NAME`, with its published weights unless `weights` names a file, or after `random:` with
    random ones; or a module.

    `method`: the class of the run's method, if it is not part of hirl; needed to open a checkpoint.
    """
    options = {"backbone": backbone, "backbone_args": backbone_args, "weights": weights}
    if isinstance(source, nn.Module):
        _reject_options(options, "a module is used as it is")
        return _from_module(source)
    if isinstance(source, Encoder):
        _reject_options(options, "an encoder is used as it is")
        return source
    if isinstance(source, RunFolder):
        _reject_options(options, "a run has its own")
        return _from_run(source, method)
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise ValueError(f"a {kind} is not an encoder: give a run, a file of weights, a timm name or a module")
    text = os.fspath(source)
    path = expanded(text)
    if path.is_dir() and is_hugging_face_folder(path):
        return _from_file(path, backbone, backbone_args, channels)
    if path.is_dir():
        _reject_options(options, "a run has its own")
        if not RunFolder(path).exists and (path / HF_FILES[0]).is_file():
            raise ValueError(
                f"{text!r} has a {HF_FILES[0]}, but no {HF_FILES[1]}: save the network there with "
                "save_pretrained(..., safe_serialization=True)"
            )
        if not RunFolder(path).exists:
            raise ValueError(
                f"{text!r} is not a run folder: it has no config.yaml; if it holds images, name an encoder such as "
                f"{DEFAULT_ENCODER}, and the folder with --data"
            )
        return _from_run(RunFolder(path), method)
    run = run_of_checkpoint(path)
    if run is not None:
        _reject_options(options, "a checkpoint has its own")
        return _from_run(run, method)
    if path.is_file():
        _reject_options({"weights": weights}, f"{text!r} is itself a file of weights")
        return _from_file(path, backbone, backbone_args, channels)
    if "/" in text or path.suffix in WEIGHT_FILES:
        raise ValueError(f"there is no run folder and no file {text!r}")
    _reject_options({"backbone": backbone}, f"{text!r} is read as the name of one")
    try:
        if weights is None:
            return _named(text, backbone_args, channels)
        file = expanded(weights)
        file = RunFolder(file).encoder_file if RunFolder(file).exists else file
        if not (file.is_file() or is_hugging_face_folder(file)):
            raise ValueError(f"there is no run folder and no encoder file {os.fspath(weights)!r}")
        return _from_weights(f"{text}, {os.fspath(weights)}", file, text, backbone_args, channels)
    except UnknownBackbone as error:
        raise ValueError(f"there is no run folder or file {text!r} here, and {error}") from error


def run_of_checkpoint(path: Path) -> RunFolder | None:
    """The run of a checkpoint in its folder or in checkpoints/ there; None for any other file."""
    if path.suffix == ".ckpt" and path.is_file():
        for folder in (path.absolute().parent, path.absolute().parent.parent):
            if RunFolder(folder).exists:
                return RunFolder(folder, checkpoint=path)
    return None


def _reject_options(options: dict[str, Any], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} is {value!r}, but must not be given here: {reason}")


def _freeze(network: nn.Module) -> nn.Module:
    return network.requires_grad_(False).eval()


def _from_module(network: nn.Module) -> Encoder:
    kind = type(network)
    description = {"module": f"{kind.__module__}.{kind.__qualname__}", "layers": repr(network)}
    return Encoder(kind.__name__, _freeze(network), network_hash(network.state_dict(), description), description)


def _from_run(run: RunFolder, method: str | type[Method] | None) -> Encoder:
    channels = run.config["channels"]  # the config first: a folder without one is not a run
    found = find_encoder(run, method=method)
    name = str(run.checkpoint_file if run.has_own_checkpoint else run.folder)
    opened = _self_described(name, found.file, found.weights, found.metadata)
    opened = replace(opened, run=run, channels=channels, trained=found.trained)
    if found.state is None:
        return opened
    return replace(opened, name=f"{name} ({found.state})", description=opened.description | {"state": found.state})


def _from_file(path: Path, backbone: str | None, backbone_args: dict[str, Any] | None, channels: int | None) -> Encoder:
    metadata = load_metadata(path) if backbone is None and path.is_file() else None
    if metadata is not None:
        return _self_described(str(path), path, load_weights(path), metadata)
    if path.suffix == ".safetensors" and is_tree(path):
        raise ValueError(f"{str(path)!r} is a prototype tree, not an encoder: name its run, or a file of weights")
    return _from_weights(str(path), path, backbone, backbone_args, channels)


def _self_described(name: str, file: Path, weights: Weights, metadata: EncoderMetadata) -> Encoder:
    """The encoder of a file that hirl wrote."""
    network = make_encoder(weights, metadata, source=str(file))
    return Encoder(
        name=name,
        network=_freeze(network),
        sha256=network_hash(weights, metadata.network),
        description=metadata.network | {"weights": str(file)},
        image_size=metadata.image_size,
        channels=len(metadata.mean),
        mean=metadata.mean,
        std=metadata.std,
        provenance=metadata.provenance,
    )


def _named(text: str, backbone_args: dict[str, Any] | None, channels: int | None) -> Encoder:
    args = dict(backbone_args or {})
    if channels is not None and text.startswith(RANDOM_PREFIX) and TORCHVISION not in text:
        args = {"in_chans": channels} | args
    # The caller's generator is left as it was; random weights are the same each time.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network, provenance, form = named_encoder(text, args)
    backbone = text.removeprefix(RANDOM_PREFIX)
    description = {"backbone": backbone, "backbone_args": args}
    name = f"{backbone}, random weights" if provenance.random else text
    return _from_elsewhere(name, network, description, provenance.source, provenance, form)


def _from_weights(
    name: str, path: Path, backbone: str | None, backbone_args: dict[str, Any] | None, channels: int | None
) -> Encoder:
    """The encoder of a file of weights or a checkpoint of another project.

    Without `backbone` the network is inferred from shapes.
    """
    found = read_checkpoint(path)
    args = dict(backbone_args or {})
    if backbone is None:
        network_found = found.complete_network(path)
        backbone, args = network_found.name, network_found.args | args
    elif channels is not None and not backbone.startswith(TORCHVISION):
        args = {"in_chans": channels} | args
    with torch.random.fork_rng(devices=[]):
        if backbone.startswith(TORCHVISION):
            tensors = found.weights | found.heads
            network = make_torchvision(backbone.removeprefix(TORCHVISION), args, tensors, source=str(path))
        else:
            network = make_backbone(backbone, **args)
            fit_weights(network, found.weights, source=str(path), name=backbone)
    description: dict[str, Any] = {"backbone": backbone, "backbone_args": args}
    if found.norm_eps is not None:
        description["norm_eps"] = found.norm_eps
        for layer in network.modules():
            if isinstance(layer, nn.LayerNorm):
                layer.eps = found.norm_eps
    return _from_elsewhere(name, network, description, str(path), found.provenance, found.format)


def _from_elsewhere(
    name: str,
    network: nn.Module,
    description: dict[str, Any],
    weights: str,
    provenance: Provenance,
    form: ImageFormat | None,
) -> Encoder:
    """An encoder that hirl did not train. Its format, where it is known, says how its images were prepared."""
    images: dict[str, Any] = {} if form is None else {"channels": len(form.mean), "mean": form.mean, "std": form.std}
    sha256, about = network_hash(network.state_dict(), description), description | {"weights": weights}
    return Encoder(name, _freeze(network), sha256, about, **images, provenance=provenance, format=form)
