"""Random masks over the patches of views: the contract, and BEiT's blocks with iBOT's ratios.

Hangbo Bao, Li Dong, Songhao Piao and Furu Wei. BEiT: BERT Pre-Training of Image Transformers. ICLR 2022,
arXiv:2106.08254.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hirl.data.upload import upload
from hirl.data.views.draws import Ints, uniforms
from hirl.data.views.view import check_probability
from hirl.seeds import MASK_ATTEMPTS_FROM, MASK_SLOTS

_TRIES = 10
_LOG_RATIO = float(np.log(1 / 0.3))
_NUMBERS = 4  # per attempt: area, ratio, top, left


class Mask(ABC):
    """A random mask over the square patches of a view."""

    patch: int
    """The side of a patch in pixels, a divisor of the view's."""

    @abstractmethod
    def draw(self, size: int, seed: int, epoch: int, samples: Ints, view: int) -> Tensor:
        """(B, size / patch, size / patch) bool, True where a patch is hidden, for B samples.

        A function of the arguments alone, sample by sample; `draws.uniforms` gives numbers for it.
        """


@dataclass(frozen=True, kw_only=True)
class BlockMask(Mask):
    """Block-wise mask over patches (BEiT's blocks, iBOT's ratios): with `probability`, ratio ± spread of them.

    Blocks are added until the desired number of patches is hidden. Each aims at an area between a ninth of the grid and
    the number of patches still missing, with an aspect ratio between .3 and 1/.3; ten failures in a row end the search.
    """

    patch: int = 16
    probability: float = 0.5
    ratio: float = 0.3
    spread: float = 0.2

    def __post_init__(self) -> None:
        check_probability("BlockMask.probability", self.probability)
        if self.patch < 1:
            raise ValueError(f"BlockMask.patch is {self.patch}, but must be at least 1 pixel")
        if not 0 <= self.ratio - self.spread <= self.ratio + self.spread <= 1:
            raise ValueError(f"BlockMask.ratio ± spread is {self.ratio} ± {self.spread}, but must be between 0 and 1")

    def draw(self, size: int, seed: int, epoch: int, samples: Ints, view: int) -> Tensor:
        side = size // self.patch
        smallest = (side // 3) ** 2
        on, share = uniforms(seed, epoch, samples, [view], MASK_SLOTS)[:, 0].T
        ratio = np.where(on < self.probability, self.ratio + self.spread * (2 * share - 1), 0.0)
        wanted = ratio * side * side  # (B,)
        hidden = np.zeros((len(samples), side, side), dtype=bool)
        misfits = np.zeros(len(samples), dtype=np.int64)
        axis = np.arange(side)

        active = np.flatnonzero(wanted > 0)
        attempt = 0
        while len(active):
            start = MASK_ATTEMPTS_FROM + attempt * _NUMBERS
            slots = range(start, start + _NUMBERS)
            area_at, ratio_at, top_at, left_at = uniforms(seed, epoch, samples[active], [view], slots)[:, 0].T
            missing = wanted[active] - hidden[active].sum((1, 2))
            area = smallest + (missing - smallest) * area_at
            aspect = np.exp(_LOG_RATIO * (2 * ratio_at - 1))
            height = np.rint(np.sqrt(area * aspect)).astype(np.int64)
            width = np.rint(np.sqrt(area / aspect)).astype(np.int64)
            top = np.floor(top_at * (side - height + 1)).astype(np.int64)
            left = np.floor(left_at * (side - width + 1)).astype(np.int64)
            rows = (axis >= top[:, None]) & (axis < (top + height)[:, None])
            columns = (axis >= left[:, None]) & (axis < (left + width)[:, None])
            block = rows[:, :, None] & columns[:, None, :]
            new = (block & ~hidden[active]).sum((1, 2))
            laid = (height < side) & (width < side) & (new > 0) & (new <= missing)
            hidden[active[laid]] |= block[laid]
            misfits[active] = np.where(laid, 0, misfits[active] + 1)
            done = (misfits[active] == _TRIES) | (hidden[active].sum((1, 2)) >= wanted[active])
            active = active[~done]
            attempt += 1
        return torch.from_numpy(hidden)


def uploaded_mask(mask: Tensor, device: torch.device) -> Tensor:
    """The mask on `device`, carrying the one on the CPU along for `mask_on_cpu`."""
    uploaded = upload(mask, device)
    if uploaded is not mask:
        uploaded.original = mask  # type: ignore[attr-defined]
    return uploaded


def mask_on_cpu(mask: Tensor) -> Tensor:
    """The mask on the CPU. Where `uploaded_mask` made it, the CPU need not wait for the device."""
    original: Tensor | None = getattr(mask, "original", None)
    return mask.cpu() if original is None else original
