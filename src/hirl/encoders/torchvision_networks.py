"""Encoders by their torchvision names."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from hirl.encoders.encoder_file import Weights, fit_weights


def make_torchvision(name: str, args: dict[str, Any], weights: Weights | None = None, *, source: str = "") -> nn.Module:
    """The network up to its classifier, the last linear layer; weights, from `source`, may include the classifier's."""
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
        fit_weights(network, weights, source=source, name=name)
    network.set_submodule(last, nn.Identity())
    if weights is not None and not with_classifier:
        fit_weights(network, weights, source=source, name=name)
    return network
