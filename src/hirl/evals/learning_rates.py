"""Which parameter learns at which rate and decays by how much: encoder and classifier, and a transformer's layers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from hirl.evals.settings import Recipe

MOMENTUM = 0.9  # of every official setting with SGD or LARS
TRUST = 0.001  # LARS's coefficient in SimSiam's linear classification


def make_optimiser(encoder: nn.Module, heads: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over both; each group remembers its peak rate as `peak`."""
    groups = [group | {"lr": group["peak"]} for group in param_groups(encoder, heads, recipe)]
    if recipe.optimiser == "adamw":
        return torch.optim.AdamW(groups)
    if recipe.optimiser == "lars":
        from timm.optim.lars import Lars

        # Rates are adapted without weight decay too, as in the original; lightly's LARS would leave them alone.
        lars: torch.optim.Optimizer = Lars(groups, momentum=MOMENTUM, trust_coeff=TRUST, always_adapt=True)
        return lars
    return torch.optim.SGD(groups, momentum=MOMENTUM)


def param_groups(encoder: nn.Module, heads: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Groups of `params`, `peak` and `weight_decay`; a frozen encoder is in none."""
    if recipe.layer_decay != 1:
        return [*_layers(heads, recipe, recipe.classifier_lr, 1.0), *_encoder_layers(encoder, recipe)]
    groups = [{"params": list(heads.parameters()), "peak": recipe.classifier_lr}]
    if recipe.encoder_lr:
        groups.append({"params": list(encoder.parameters()), "peak": recipe.encoder_lr})
    return [group | {"weight_decay": recipe.weight_decay} for group in groups]


def _encoder_layers(encoder: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Layer decay as BEiT has it: the classifier is the top layer, the patch embedding the lowest."""
    return _layers(encoder, recipe, recipe.encoder_lr * recipe.layer_decay, recipe.layer_decay)


def _layers(module: nn.Module, recipe: Recipe, top: float, decay: float) -> list[dict[str, Any]]:
    """Groups by timm's layers, the highest learning at `top`; biases, norms and positions have no weight decay."""
    import timm.optim

    spared: Collection[str] = getattr(module, "no_weight_decay", tuple)()
    groups = timm.optim.param_groups_layer_decay(  # type: ignore[attr-defined]
        module, weight_decay=recipe.weight_decay, no_weight_decay_list=spared, layer_decay=decay
    )
    return [
        {"params": group["params"], "weight_decay": group["weight_decay"], "peak": top * group["lr_scale"]}
        for group in groups
    ]
