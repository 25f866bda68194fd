"""RandAugment on single crops, by timm; its draws are a function of a seed per image.

Ekin D. Cubuk, Barret Zoph, Jonathon Shlens and Quoc V. Le. RandAugment: Practical automated data augmentation with a
reduced search space. NeurIPS 2020, arXiv:1909.13719.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hirl.data.views.view import View
from hirl.seeds import seeded_globals

_TRANSLATE = 0.45  # most pixels of a translation, as a share of the image's side; timm's


def rand_augmented(crop: Tensor, view: View, mean: tuple[float, ...], seed: int) -> Tensor:
    """(C, s, s) uint8 → the same, changed by the operations that `view.rand_augment` describes.

    mean: the colour, in [0, 1], that fills what moves into the image
    """
    if view.rand_augment is None:
        return crop
    fill = tuple(min(255, round(255 * value)) for value in mean)
    augment = _policy(view.rand_augment, view.size, fill * 3 if len(fill) == 1 else fill, view.interpolation)
    pixels = crop.permute(1, 2, 0).numpy()
    picture = Image.fromarray(np.ascontiguousarray(pixels if len(crop) == 3 else pixels.repeat(3, axis=2)))
    with seeded_globals(seed):
        changed = augment(picture)
    if len(crop) == 1:
        changed = changed.convert("L")
    return torch.from_numpy(np.array(changed)).view(*crop.shape[1:], len(crop)).permute(2, 0, 1)


@lru_cache(maxsize=8)
def _policy(policy: str, size: int, fill: tuple[int, ...], interpolation: str) -> Callable[[Image.Image], Image.Image]:
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.transforms import str_to_pil_interp

    # As timm's own pipeline sets it up.
    details = {
        "translate_const": int(size * _TRANSLATE),
        "img_mean": fill,
        "interpolation": str_to_pil_interp(interpolation),
    }
    augment: Callable[[Image.Image], Image.Image] = rand_augment_transform(policy, details)
    for operation in augment.ops:  # type: ignore[attr-defined]
        if operation.name.startswith("Posterize"):
            operation.aug_fn = partial(_posterized, operation.aug_fn)
    return augment


def _posterized(posterize: Callable[..., Image.Image], picture: Image.Image, bits: int, **details: Any) -> Image.Image:
    """Posterise to `bits` bits. The greatest magnitude leaves none: a black image, which Pillow 12 would refuse."""
    return posterize(picture, bits, **details) if bits > 0 else picture.point(lambda _: 0)


def check_policy(policy: str) -> None:
    """Raise a ValueError unless timm understands the policy."""
    try:
        if not policy.startswith("rand-"):
            raise ValueError
        _policy(policy, 224, (124, 116, 104), "bicubic")
    except (AssertionError, ValueError, KeyError) as error:
        raise ValueError(
            f"rand_augment is {policy!r}, but must be a policy of timm such as rand-m9-mstd0.5-inc1"
        ) from error
