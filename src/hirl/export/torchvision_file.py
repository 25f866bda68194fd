"""`--to torchvision`: the state dict of a torchvision network, and a .json that says how to make it and its images.

Residual networks have the same names of weights in timm and torchvision. Those of a plain vision transformer are
translated.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from hirl.encoders.encoder_file import Weights
from hirl.encoders.published import TORCHVISION
from hirl.encoders.torchvision_networks import classifier_of, vit_to_torchvision
from hirl.export.comparison import compare_with_torch
from hirl.export.network import Export
from hirl.files import atomic_write


class Twin(NamedTuple):
    """The same network in torchvision: `torchvision.models.NAME(**arguments)` with `classifier` made an identity."""

    name: str
    arguments: dict[str, Any]
    classifier: str
    weights: Weights

    def make(self) -> nn.Module:
        from torchvision import models  # takes seconds, which `import hirl` need not

        network: nn.Module = getattr(models, self.name)(**self.arguments)
        network.set_submodule(self.classifier, nn.Identity())
        return network


def write_torchvision(export: Export, out: Path) -> float:
    """Write both files, and return the largest difference between torchvision's network and ours."""
    twin = find_twin(export)
    pixels = export.pixels
    preset = {"crop_size": pixels.size, "resize_size": pixels.resize, "mean": pixels.mean, "std": pixels.std}
    about: dict[str, Any] = {
        "network": twin.name,
        "arguments": twin.arguments,
        "classifier": twin.classifier,
        "transforms": preset,
        "interpolation": pixels.interpolation,
    }
    with atomic_write(out) as aside:
        torch.save(twin.weights, aside)
        loaded = twin.make().eval()
        loaded.load_state_dict(torch.load(aside, weights_only=True))
        difference = compare_with_torch(
            export, lambda some: {"features": loaded(export.network.normalise(some))}, "torchvision"
        )
        with atomic_write(out.with_suffix(".json")) as beside:
            beside.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return difference


def find_twin(export: Export) -> Twin:
    """Torchvision's network for these weights, or a ValueError."""
    from torchvision import models

    about, network = export.encoder.description, export.encoder.network
    name, args = str(about.get("backbone", "")), dict(about.get("backbone_args") or {})
    weights = {key: tensor.detach().cpu().contiguous() for key, tensor in network.state_dict().items()}
    if name.startswith(TORCHVISION):
        name = name.removeprefix(TORCHVISION)
        return Twin(name, args, _classifier(name, args), weights)
    shape = getattr(network, "patch_embed", None)
    if shape is not None and "cls_token" in weights:
        arguments = _transformer_arguments(network, export.pixels.size, weights)
        translated = {vit_to_torchvision(key): tensor for key, tensor in weights.items()}
        twin = Twin("VisionTransformer", arguments, "heads.head", translated)
        if _fits(twin):
            return twin
    elif name in models.list_models(models):
        own = {"init_weights": False} if "init_weights" in inspect.signature(getattr(models, name)).parameters else {}
        twin = Twin(name, own, _classifier(name, own), weights)
        if _fits(twin):
            return twin
    raise export.unsupported_error("torchvision")


def _transformer_arguments(network: nn.Module, size: int, weights: Weights) -> dict[str, Any]:
    blocks: Any = network.get_submodule("blocks")
    return {
        "image_size": size,
        "patch_size": weights["patch_embed.proj.weight"].shape[-1],
        "num_layers": len(blocks),
        "num_heads": blocks[0].attn.num_heads,
        "hidden_dim": weights["cls_token"].shape[-1],
        "mlp_dim": len(weights["blocks.0.mlp.fc1.bias"]),
    }


def _fits(twin: Twin) -> bool:
    with torch.device("meta"):
        own = {key: tensor.shape for key, tensor in twin.make().state_dict().items()}
    return own == {key: tensor.shape for key, tensor in twin.weights.items()}


def _classifier(name: str, arguments: dict[str, Any]) -> str:
    from torchvision import models

    with torch.device("meta"):
        network: nn.Module = getattr(models, name)(**arguments)
    return classifier_of(network, name)
