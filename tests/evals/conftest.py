"""Small images whose classes differ in colour, and subjects to evaluate on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hirl.data.loader import EvaluationLoader
from hirl.data.sources.arrays import ArrayImages
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.normalisation import choose_normalisation
from hirl.encoders.backbones import make_backbone
from hirl.evals.base import Part, Subject

SIZE = 16
COLOURS = ((200, 60, 60), (200, 140, 60), (60, 60, 200), (60, 140, 200))  # two warm ones, two cold ones
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("resnet10t", {"channels": [8, 8, 16, 16]}),
    "vit": (
        "vit_tiny_patch16_224",
        {"img_size": SIZE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2},
    ),
}


def coloured(count: int, seed: int, name: str) -> ArrayImages:
    """`count` images of each of four classes within two, with much noise around their colour."""
    random = np.random.default_rng(seed)
    fine = np.tile(np.arange(4), count)
    tint = np.array(COLOURS)[fine][:, :, None, None] + random.normal(0, 10, (len(fine), 3, 1, 1))
    pixels = (tint + random.normal(0, 40, (len(fine), 3, SIZE, SIZE))).clip(0, 255).astype(np.uint8)
    return ArrayImages(
        name=name,
        pixels=torch.from_numpy(pixels),
        labels=torch.from_numpy(np.stack([fine, fine // 2], axis=1)),
        label_names=(("red", "orange", "blue", "azure"), ("warm", "cold")),
    )


@pytest.fixture
def coloured_subject() -> Callable[..., Subject]:
    """Makes a subject: an untrained encoder and coloured images, 40 per class to learn from and 25 to test on."""

    def make(kind: str = "cnn", *, count: int = 40, **changes: Any) -> Subject:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            backbone, args = BACKBONES[kind]
            encoder = make_backbone(backbone, **args).eval().requires_grad_(False)
        parts: dict[Part, ImageSet] = {"train": coloured(count, 1, "train"), "test": coloured(25, 2, "test")}

        def features(part: Part) -> Tensor:
            with torch.no_grad():
                return torch.cat([encoder(batch.views[0]) for batch in EvaluationLoader(parts[part], size=SIZE)])

        settings: dict[str, Any] = {
            "name": kind,
            "encoder": encoder,
            "image_size": SIZE,
            "normalisation": choose_normalisation(parts["train"]),
            "features": features,
            "parts": parts,
        }
        return Subject(**(settings | changes))

    return make
