"""Open an encoder from a run, a file of weights, a timm or torchvision name, or a module."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hirl.backbones import UnknownBackbone, make_backbone
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method
from hirl.runs.encoder_file import Weights, fit_weights, load_metadata, load_weights, make_encoder, network_hash
from hirl.runs.folder import Run
from hirl.runs.representations import Trained, load_trained
from hirl.runs.stored import find_encoder, find_tree

TORCHVISION = "torchvision:"
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
    about: dict[str, Any]  # backbone, arguments, source of the weights
    run: Run | None = None
    image_size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    trained: Trained | None = None

    def load_trained(self, *, method: str | type[Method] | None = None) -> Trained:
        """The method and heads of the run, see `representations.load_trained`."""
        assert self.run is not None
        return load_trained(self.run, method=method) if self.trained is None else self.trained

    @cached_property
    def tree(self) -> PrototypeTree | None:
        """The run's tree; None if there is no run, or it has none yet."""
        if self.run is None:
            return None
        if self.trained is not None and (self.run.chosen or "state" in self.about):
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
    """Open the encoder that `source` names; one that is open already is given back.

    A run or its folder, which may be unfinished; a checkpoint in a run folder; a file of weights with its `backbone`,
    which hirl's own files name themselves; a timm name or `torchvision:NAME`, with random weights unless `weights`
    names a file; or a module.

    `method`: the class of the run's method, if it is not part of hirl; needed to open a checkpoint.
    """
    options = {"backbone": backbone, "backbone_args": backbone_args, "weights": weights}
    if isinstance(source, nn.Module):
        _refuse(options, "a module is used as it is")
        return _from_module(source)
    if isinstance(source, Encoder):
        _refuse(options, "an encoder is used as it is")
        return source
    if isinstance(source, Run):
        _refuse(options, "a run has its own")
        return _from_run(source, method)
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise ValueError(f"a {kind} is not an encoder: give a run, a file of weights, a timm name or a module")
    text = os.fspath(source)
    path = Path(text).expanduser()
    if path.is_dir():
        _refuse(options, "a run has its own")
        return _from_run(Run(path), method)
    run = run_of_checkpoint(path)
    if run is not None:
        _refuse(options, "a checkpoint has its own")
        return _from_run(run, method)
    if path.is_file():
        _refuse({"weights": weights}, f"{text!r} is itself a file of weights")
        return _from_file(path, backbone, backbone_args, channels)
    _refuse({"backbone": backbone}, f"{text!r} is read as the name of one")
    if "/" in text or path.suffix in WEIGHT_FILES:
        raise ValueError(f"there is no run folder and no file {text!r}")
    file = None if weights is None else os.fspath(weights)
    name = f"{text}, {'random weights' if file is None else file}"
    try:
        return _from_name(name, text, backbone_args, file, channels)
    except UnknownBackbone as error:
        raise ValueError(f"there is no run folder or file {text!r} here, and {error}") from error


def run_of_checkpoint(path: Path) -> Run | None:
    """The run of a checkpoint in its folder or in checkpoints/ there; None for any other file."""
    if path.suffix == ".ckpt" and path.is_file():
        for folder in (path.absolute().parent, path.absolute().parent.parent):
            if Run(folder).exists:
                return Run(folder, checkpoint=path)
    return None


def encoder_weights(source: str | os.PathLike[str]) -> Weights:
    """The weights of a run's encoder, of a checkpoint in a run folder, or of a file of weights."""
    path = Path(source).expanduser()
    run = Run(path) if path.is_dir() else run_of_checkpoint(path)
    if run is not None:
        return run.encoder_weights()[0]
    if not path.is_file():
        raise ValueError(f"there is no run folder and no encoder file {os.fspath(source)!r}")
    return load_weights(path)


def find_device(name: str | None) -> torch.device:
    """The named device, checked; by default a GPU if there is one, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"there is no device {name!r} here: {str(error).strip().splitlines()[0]}") from error


def _refuse(options: dict[str, Any], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} {value!r} cannot be given here: {reason}")


def _frozen(network: nn.Module) -> nn.Module:
    return network.requires_grad_(False).eval()


def _from_module(network: nn.Module) -> Encoder:
    kind = type(network)
    about = {"module": f"{kind.__module__}.{kind.__qualname__}", "layers": repr(network)}
    weights = {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    return Encoder(name=kind.__name__, network=_frozen(network), sha256=network_hash(weights, about), about=about)


def _from_run(run: Run, method: str | type[Method] | None) -> Encoder:
    channels = run.config["channels"]  # the config first: a folder without one is not a run
    found = find_encoder(run, method=method)
    name = str(run.checkpoint_file if run.chosen else run.folder)
    if found.state is not None:
        name = f"{name} ({found.state})"
    more: dict[str, Any] = {"run": run, "channels": channels, "trained": found.trained}
    opened = _self_described(name, found.file, found.weights, found.metadata, **more)
    return opened if found.state is None else replace(opened, about=opened.about | {"state": found.state})


def _from_file(path: Path, backbone: str | None, backbone_args: dict[str, Any] | None, channels: int | None) -> Encoder:
    metadata = load_metadata(path) if backbone is None else None
    if metadata is not None:
        return _self_described(str(path), path, load_weights(path), metadata, channels=len(metadata["mean"]))
    if backbone is None:
        load_weights(path)  # if the file cannot be read, that is the mistake to report
        raise ValueError(
            f"{str(path)!r} holds weights but not the name of their network: name it with backbone, e.g. resnet50"
        )
    return _from_name(str(path), backbone, backbone_args, str(path), channels)


def _self_described(name: str, file: Path, weights: Weights, metadata: dict[str, Any], **more: Any) -> Encoder:
    """The encoder of a file that hirl wrote."""
    network = make_encoder(weights, metadata, source=str(file))
    about = {"backbone": metadata["backbone"], "backbone_args": metadata["backbone_args"]}
    return Encoder(
        name=name,
        network=_frozen(network),
        sha256=network_hash(weights, about),
        about=about | {"weights": str(file)},
        image_size=metadata["image_size"],
        mean=tuple(metadata["mean"]),
        std=tuple(metadata["std"]),
        **more,
    )


def _from_name(
    name: str, backbone: str, backbone_args: dict[str, Any] | None, file: str | None, channels: int | None
) -> Encoder:
    weights = None if file is None else encoder_weights(file)
    args = backbone_args or {}
    # The caller's generator is left as it was; without weights the network is the same each time.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if backbone.startswith(TORCHVISION):
            network = _torchvision(backbone.removeprefix(TORCHVISION), args, weights, file)
        else:
            in_chans = {} if channels is None else {"in_chans": channels}
            network = make_backbone(backbone, **(in_chans | args))
            if weights is not None:
                fit_weights(network, weights, source=str(file), name=backbone)
    about = {"backbone": backbone, "backbone_args": args}
    sha256 = network_hash(network.state_dict(), about)
    return Encoder(name=name, network=_frozen(network), sha256=sha256, about=about | {"weights": file})


def _torchvision(name: str, args: dict[str, Any], weights: Weights | None, file: str | None) -> nn.Module:
    """torchvision's network up to its classifier, the last linear layer; the weights may include the classifier's."""
    import torchvision.models as zoo
    from torchvision.models import get_model, list_models

    if name not in list_models(zoo):
        raise ValueError(f"torchvision has no classification network {name!r}: choose one such as resnet50 or vit_b_16")
    if "init_weights" in inspect.signature(getattr(zoo, name)).parameters:
        args = {"init_weights": True} | args
    network: nn.Module = get_model(name, weights=None, **args)
    linear = [place for place, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(f"torchvision's {name!r} does not end in a linear classifier, so its features are not known")
    last = linear[-1]
    with_classifier = weights is not None and f"{last}.weight" in weights
    if weights is not None and with_classifier:
        old = network.get_submodule(last)
        assert isinstance(old, nn.Linear)
        classes = len(weights[f"{last}.weight"])
        network.set_submodule(last, nn.Linear(old.in_features, classes, bias=old.bias is not None))
        fit_weights(network, weights, source=str(file), name=name)
    network.set_submodule(last, nn.Identity())
    if weights is not None and not with_classifier:
        fit_weights(network, weights, source=str(file), name=name)
    return network
