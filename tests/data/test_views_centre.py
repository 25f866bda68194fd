"""The central square of an image: of a very long one, without its far ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hirl.data.sources import open_images
from hirl.data.views.centre import CentreRenderer
from hirl.data.views.geometry import resize
from hirl.data.views.normalisation import Normalisation


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width"), [(1, 200), (1, 203), (301, 2), (4, 402), (64, 2400), (32, 1501)])
def test_the_far_ends_of_a_long_image_do_not_count(
    height: int, width: int, interpolation: str, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    """For it would be resized to millions of pixels: one of 1 x 20,000 to 256 x 5,120,000."""
    renderer = CentreRenderer(
        images=open_images(np.zeros((1, 8, 8, 3), dtype=np.uint8)),
        size=28,
        resize=32,
        interpolation=interpolation,
        normalisation=Normalisation((0.0,) * 3, (1.0,) * 3),
        device=torch.device("cpu"),
        strict=False,
    )
    image = torch.randint(256, (1, 3, height, width), dtype=torch.uint8, generator=generator)
    longest = 0

    def measured(image: Tensor, height: int, width: int, interpolation: str) -> Tensor:
        nonlocal longest
        longest = max(height, width)
        return resize(image, height, width, interpolation)

    monkeypatch.setattr("hirl.data.views.centre.resize", measured)
    found = renderer._centre(image)
    assert longest <= 32 * (32 + 3)
    monkeypatch.setattr("hirl.data.views.centre.LONGEST", 1000)
    assert (found.int() - renderer._centre(image).int()).abs().max() <= 1
