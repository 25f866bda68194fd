"""The projectors and predictors of MoCo v2, SimSiam, SwAV and MoCo v3: linear layers with ReLU in between.

They differ in where batch norm stands; the files of the methods name their papers:

- MoCo v2: nowhere.
- SwAV: before every ReLU.
- SimSiam: before every ReLU, and in the projector also behind the last layer.
- MoCo v3: before every ReLU and behind the last layer, in projector and predictor.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Features (B, widths[0]) → (B, widths[-1]).

    Args:
        widths: Of the input, of each hidden layer and of the output.
        hidden_norm: Batch norm before every ReLU.
        output_norm: Batch norm without an affine part behind the last layer.
    """

    def __init__(self, *widths: int, hidden_norm: bool = True, output_norm: bool = False) -> None:
        super().__init__()
        *hidden, last = pairwise(widths)
        layers: list[nn.Module] = []
        # A layer before batch norm has no bias: the norm would subtract it again.
        for inputs, outputs in hidden:
            layers.append(nn.Linear(inputs, outputs, bias=not hidden_norm))
            if hidden_norm:
                layers.append(nn.BatchNorm1d(outputs))
            layers.append(nn.ReLU())
        layers.append(nn.Linear(*last, bias=not output_norm))
        if output_norm:
            layers.append(nn.BatchNorm1d(widths[-1], affine=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.layers(features)
        return output
