"""An encoder by whatever names it: a run, a file of weights, a timm or torchvision name, or a module at hand."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hirl.backbones import make_backbone
from hirl.runs.encoder_file import check_fit, encoder_weights, network_hash
from hirl.runs.folder import ENCODER_FORMAT, Run

TORCHVISION = "torchvision:"


@dataclass(frozen=True)
class Encoder:
    """A network in eval mode and frozen, and what is known of the images it wants."""

    name: str
    network: nn.Module  # images (B, C, H, W) → features (B, width)
    sha256: str  # of its weights and of what it is
    about: dict[str, Any]  # backbone, arguments, where the weights come from
    run: Run | None = None
    image_size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def open_encoder(
    source: Any,
    *,
    backbone: str | None = None,
    backbone_args: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    channels: int | None = None,
) -> Encoder:
    """The encoder of a run (folder), a file of weights with its `backbone`, a timm name or `torchvision:NAME`, with
    weights at random unless `weights` names a file, or a module. Weights fit fully or are refused."""
    told = {"backbone": backbone, "backbone_args": backbone_args, "weights": weights}
    if isinstance(source, nn.Module):
        _refuse(told, "a module is evaluated as it is")
        return _of_module(source)
    if isinstance(source, Run):
        _refuse(told, "a run has its own")
        return _of_run(source)
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise ValueError(f"a {kind} cannot be evaluated: give a run, a file of weights, a timm name or a module")
    text = os.fspath(source)
    path = Path(text).expanduser()
    if path.is_dir():
        _refuse(told, "a run has its own")
        return _of_run(Run(path))
    if path.is_file():
        _refuse({"weights": weights}, f"{text!r} is a file of weights itself")
        return _of_file(path, backbone, backbone_args, channels)
    _refuse({"backbone": backbone}, f"{text!r} is read as the name of one")
    if "/" in text or path.suffix in (".safetensors", ".pth", ".pt", ".ckpt", ".bin"):
        raise ValueError(f"there is no run folder and no file {text!r} to evaluate")
    return _by_name(text, backbone_args, None if weights is None else os.fspath(weights), channels)


def device_of(name: str | None) -> torch.device:
    """The device of that name, if it is there; by default a GPU where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"there is no device {name!r} here: {str(error).strip().splitlines()[0]}") from error


def _refuse(told: dict[str, Any], why: str) -> None:
    for name, value in told.items():
        if value is not None:
            raise ValueError(f"{name} {value!r} cannot be given here: {why}")


def _frozen(network: nn.Module) -> nn.Module:
    return network.requires_grad_(False).eval()


def _of_module(network: nn.Module) -> Encoder:
    kind = type(network)
    about = {"module": f"{kind.__module__}.{kind.__qualname__}", "layers": repr(network)}
    weights = {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    return Encoder(name=kind.__name__, network=_frozen(network), sha256=network_hash(weights, about), about=about)


def _of_run(run: Run) -> Encoder:
    config = run.config
    weights, about = run.encoder_weights()
    return _ours(str(run.folder), str(run.encoder_file), weights, about, run=run, channels=config.get("channels"))


def _ours(name: str, file: str, weights: dict[str, Tensor], about: dict[str, Any], **more: Any) -> Encoder:
    """An encoder file of hirl, which says what it is."""
    told = {"backbone": about["backbone"], "backbone_args": about["backbone_args"]}
    network = make_backbone(told["backbone"], **told["backbone_args"])
    check_fit(network, weights, file, told["backbone"])
    network.load_state_dict(weights, strict=True)
    return Encoder(
        name=name,
        network=_frozen(network),
        sha256=network_hash(weights, told),
        about=told | {"weights": file},
        image_size=about["image_size"],
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        **more,
    )


def _of_file(path: Path, backbone: str | None, backbone_args: dict[str, Any] | None, channels: int | None) -> Encoder:
    weights = encoder_weights(str(path))
    about = _metadata(path)
    if backbone is None and about is not None:
        return _ours(str(path), str(path), weights, about, channels=len(about["mean"]))
    if backbone is None:
        raise ValueError(
            f"{str(path)!r} holds weights but not the name of their network: say it with backbone, such as resnet50"
        )
    return _named(str(path), backbone, backbone_args, weights, str(path), channels)


def _metadata(path: Path) -> dict[str, Any] | None:
    """What an encoder file of hirl says of itself; None for any other file."""
    if path.suffix != ".safetensors":
        return None
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        try:
            about = json.loads((file.metadata() or {}).get("about", "null"))
        except json.JSONDecodeError:
            return None
    return about if isinstance(about, dict) and about.get("format") == ENCODER_FORMAT else None


def _by_name(text: str, backbone_args: dict[str, Any] | None, file: str | None, channels: int | None) -> Encoder:
    weights = None if file is None else encoder_weights(file)
    name = f"{text}, {'weights at random' if file is None else file}"
    return _named(name, text, backbone_args, weights, file, channels)


def _named(
    name: str,
    backbone: str,
    backbone_args: dict[str, Any] | None,
    weights: dict[str, Tensor] | None,
    file: str | None,
    channels: int | None,
) -> Encoder:
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
                check_fit(network, weights, str(file), backbone)
                network.load_state_dict(weights, strict=True)
    about = {"backbone": backbone, "backbone_args": args}
    sha256 = network_hash(network.state_dict(), about)
    return Encoder(name=name, network=_frozen(network), sha256=sha256, about=about | {"weights": file})


def _torchvision(name: str, args: dict[str, Any], weights: dict[str, Tensor] | None, file: str | None) -> nn.Module:
    """torchvision's network up to its classifier, its last linear layer; weights may hold the classifier's or not."""
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
        classes = {key: len(weights[key]) for key in (f"{last}.weight",)}
        old = network.get_submodule(last)
        assert isinstance(old, nn.Linear)
        network.set_submodule(last, nn.Linear(old.in_features, classes[f"{last}.weight"], bias=old.bias is not None))
        check_fit(network, weights, str(file), name)
        network.load_state_dict(weights, strict=True)
    network.set_submodule(last, nn.Identity())
    if weights is not None and not with_classifier:
        check_fit(network, weights, str(file), name)
        network.load_state_dict(weights, strict=True)
    return network
