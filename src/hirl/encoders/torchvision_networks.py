"""Encoders by their torchvision names, and the names of a vision transformer's weights in timm and torchvision."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from hirl.encoders.encoder_file import Weights, fit_weights

# Parts of names in timm's and in torchvision's VisionTransformer; with a dot at the start anywhere, else at the start.
VIT_NAMES = (
    ("cls_token", "class_token"), ("pos_embed", "encoder.pos_embedding"), ("patch_embed.proj.", "conv_proj."),
    ("blocks.", "encoder.layers.encoder_layer_"), (".norm1.", ".ln_1."), (".norm2.", ".ln_2."),
    (".attn.qkv.", ".self_attention.in_proj_"), (".attn.proj.", ".self_attention.out_proj."),
    (".mlp.fc1.", ".mlp.0."), (".mlp.fc2.", ".mlp.3."), ("norm.", "encoder.ln."),
)  # fmt: skip


def vit_to_torchvision(name: str) -> str:
    """torchvision's name of a weight of timm's vision transformer."""
    return _translate(name, VIT_NAMES)


def vit_to_timm(name: str) -> str:
    """timm's name of a weight of torchvision's vision transformer."""
    return _translate(name, tuple((theirs, ours) for ours, theirs in VIT_NAMES))


def _translate(name: str, table: tuple[tuple[str, str], ...]) -> str:
    for old, new in table:
        if old in name and (old.startswith(".") or name.startswith(old)):
            name = name.replace(old, new, 1)
    return name


def classifier_of(network: nn.Module, name: str) -> str:
    """The place of the classifier, the last linear layer."""
    linear = [place for place, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(f"torchvision's {name!r} does not end in a linear classifier, so its features are not known")
    return linear[-1]


def make_torchvision(name: str, args: dict[str, Any], weights: Weights | None = None, *, source: str = "") -> nn.Module:
    """The network up to its classifier, the last linear layer; weights, from `source`, may include the classifier's."""
    import torchvision.models as zoo
    from torchvision.models import get_model, list_models

    if name not in list_models(zoo):
        raise ValueError(f"torchvision has no classification network {name!r}: choose one such as resnet50 or vit_b_16")
    if "init_weights" in inspect.signature(getattr(zoo, name)).parameters:
        args = {"init_weights": True} | args
    network: nn.Module = get_model(name, weights=None, **args)
    last = classifier_of(network, name)
    classifier: nn.Module = nn.Identity()
    if weights is not None and f"{last}.weight" in weights:
        old = network.get_submodule(last)
        assert isinstance(old, nn.Linear)
        classifier = nn.Linear(old.in_features, len(weights[f"{last}.weight"]), bias=old.bias is not None)
    network.set_submodule(last, classifier)
    if weights is not None:
        fit_weights(network, weights, source=source, name=name)
    network.set_submodule(last, nn.Identity())
    return network
