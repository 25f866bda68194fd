"""Learning rate and weight decay per parameter: encoder, classifier, and the layers of a transformer."""

from __future__ import annotations

from collections.abc import Collection
from itertools import cycle
from typing import Any

import torch
from torch import nn

from hirl.evals.training.training_settings import TrainingSettings

MOMENTUM = 0.9  # in every official setting with SGD or LARS
FINAL_NORMS = ("norm", "fc_norm")  # timm's names of a transformer's norm after the last block
TRUST = 0.001  # LARS's coefficient in SimSiam's linear classification


def make_optimiser(encoder: nn.Module, heads: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimiser of encoder and heads; each group has its peak rate as `peak`."""
    groups = [group | {"lr": group["peak"]} for group in param_groups(encoder, heads, settings)]
    if settings.optimiser == "adamw":
        return torch.optim.AdamW(groups)
    if settings.optimiser == "lars":
        from timm.optim.lars import Lars

        # Rates are adapted even without weight decay, as in the original; lightly's LARS would not.
        lars: torch.optim.Optimizer = Lars(groups, momentum=MOMENTUM, trust_coeff=TRUST, always_adapt=True)
        return lars
    return torch.optim.SGD(groups, momentum=MOMENTUM)


def param_groups(encoder: nn.Module, heads: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    """Groups of `params`, `peak` and `weight_decay`; a frozen encoder is in none."""
    if settings.layer_decay != 1:
        return [*_layers(heads, settings, settings.classifier_lr, 1.0), *_encoder_layers(encoder, settings)]
    groups: list[dict[str, Any]] = [{"params": list(heads.parameters()), "peak": settings.classifier_lr}]
    if settings.rates:  # the heads of a label level follow each other, one per rate
        found = zip(heads.children(), cycle(settings.rates), strict=False)
        groups = [{"params": list(head.parameters()), "peak": rate} for head, rate in found]
    if settings.encoder_lr:
        groups.append({"params": list(encoder.parameters()), "peak": settings.encoder_lr})
    return [group | {"weight_decay": settings.weight_decay} for group in groups]


def _encoder_layers(encoder: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    """Layer decay as in BEiT: the classifier and the final norm are the top layer, the patch embedding the lowest."""
    groups = _layers(encoder, settings, settings.encoder_lr * settings.layer_decay, settings.layer_decay)
    top = {id(weight) for name, weight in encoder.named_parameters() if name.split(".")[0] in FINAL_NORMS}
    final = [weight for group in groups for weight in group["params"] if id(weight) in top]
    for group in groups:
        group["params"] = [weight for weight in group["params"] if id(weight) not in top]
    if final:
        groups.append({"params": final, "weight_decay": 0.0, "peak": settings.encoder_lr})
    return [group for group in groups if group["params"]]


def _layers(module: nn.Module, settings: TrainingSettings, top: float, decay: float) -> list[dict[str, Any]]:
    """Groups by timm's layers, the highest with rate `top`; biases, norms and positions have no weight decay."""
    import timm.optim

    spared: Collection[str] = getattr(module, "no_weight_decay", tuple)()
    groups = timm.optim.param_groups_layer_decay(  # type: ignore[attr-defined]
        module, weight_decay=settings.weight_decay, no_weight_decay_list=spared, layer_decay=decay
    )
    return [
        {"params": group["params"], "weight_decay": group["weight_decay"], "peak": top * group["lr_scale"]}
        for group in groups
    ]
