"""Training the last blocks of the encoder that a run starts from: heads first, then the blocks at small rates.

The rest of the encoder stays frozen, and so do the statistics of all its batch norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from hirl.encoders.last_blocks import Blocks, fixed_layers, freeze_but_last
from hirl.methods.base import Method, Plan

HEADS_ALONE = 0.1  # of the epochs: gradients through a still random head would destroy pretrained features
LAST_RATE = 0.01  # of the learning rate, for the last block
LAYER_DECAY = 0.75  # ratio of a block's rate to that of the next block; timm's default


@dataclass(frozen=True)
class Unfreezing:
    """The encoder's trainable parameters, each with its factor on the learning rate."""

    scales: dict[nn.Parameter, float]
    first_step: int

    @classmethod
    def of(cls, method: Method, unfreeze: Blocks, plan: Plan) -> Unfreezing:
        """Freeze every copy of the method's encoder except its last blocks."""
        scales = {}
        for encoder in method.encoder_copies:
            for weight, behind in freeze_but_last(encoder, unfreeze).items():
                scales[weight] = LAST_RATE * LAYER_DECAY**behind
            method.keep_in_eval(fixed_layers(encoder))
        return cls(scales, math.ceil(HEADS_ALONE * plan.steps))

    def scaled(self, groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The optimiser's parameter groups, split by the factor on the learning rate."""
        divided: list[dict[str, Any]] = []
        for group in groups:
            by_scale: dict[float, list[nn.Parameter]] = {}
            for weight in group["params"]:
                by_scale.setdefault(self.scales.get(weight, 1.0), []).append(weight)
            usual = group.get("lr_scale", 1.0)
            divided += [group | {"params": weights, "lr_scale": usual * scale} for scale, weights in by_scale.items()]
        return divided

    def before_update(self, step: int) -> None:
        """While the heads train alone, drop the gradients of the encoder."""
        if step < self.first_step:
            for weight in self.scales:
                weight.grad = None
