"""Checks an export: the tool's own loader against torch on random images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hirl.export.network import Export

LARGEST = 1e-4  # difference, as a share of the largest value if that is above 1
BATCHES = (1, 7)

Outputs = Mapping[str, Any]  # by name, as arrays or tensors


@torch.inference_mode()
def compare_with_torch(export: Export, load: Callable[[Tensor], Outputs], tool: str) -> float:
    """The largest difference over all outputs and batch sizes; a ValueError if it is not that of rounding.

    `load`: what the tool's own loader makes of the file, as a function of pixels (B, C, size, size). Paths must be
    equal unless another one fits as well up to rounding.
    """
    largest = 0.0
    for count in BATCHES:
        pixels = export.random_images(count)
        expected, found = export.network(pixels), load(pixels)
        for name, rows in expected.items():
            if name not in found:  # a tool that holds the encoder alone
                continue
            other = torch.from_numpy(np.asarray(found[name]))
            if other.shape != rows.shape:
                raise ValueError(f"{tool} gives {name} of shape {tuple(other.shape)}, but torch {tuple(rows.shape)}")
            if name == "path":
                sure = expected["confidence"] > LARGEST
                if not torch.equal(other[sure], rows[sure]):
                    raise ValueError(f"{tool} finds other paths than torch on random images: this file was not written")
                continue
            # Equal infinities, of a confidence without another node, do not differ.
            gap = torch.where(other == rows, 0.0, (other - rows).abs()).max()
            difference = float(gap / torch.where(rows.isfinite(), rows.abs(), 1.0).max().clamp(min=1))
            if not difference <= LARGEST:
                raise ValueError(
                    f"{name} by {tool} differs from torch by {difference:.1e} on random images, but must differ by at "
                    f"most {LARGEST:.0e}: this file was not written"
                )
            largest = max(largest, difference)
    return largest
