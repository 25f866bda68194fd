"""Features as unit rows, read in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Features: TypeAlias = "Tensor | npt.NDArray[np.floating]"

# Scores computed at a time. On two CPU cores 4 Mi (16 MiB, about the size of the caches) measured fastest; a GPU needs
# larger pieces to stay busy.
CHUNK_VALUES = {"cpu": 1 << 22}
CHUNK_VALUES_ELSEWHERE = 1 << 26
# Below the smallest normal float32 a row cannot be divided by its length.
SHORTEST = torch.finfo(torch.float32).tiny


class UnitRows:
    """The rows of (n, D) features at length 1 in float32, converted in chunks: there is never a full copy.

    `features` is a torch tensor on any device or a numpy array, memory-mapped or not, of any float type.
    """

    def __init__(self, features: Features, *, name: str = "features") -> None:
        if not isinstance(features, (Tensor, np.ndarray)):
            raise ValueError(f"{name} must be a torch tensor or a numpy array, not {type(features).__name__}")
        if features.ndim != 2:
            raise ValueError(f"{name} must be of shape (N, D), not {tuple(features.shape)}")
        if features.shape[1] == 0:
            raise ValueError(f"{name} of shape {tuple(features.shape)} have no columns: D must be at least 1")
        floating = features.is_floating_point() if isinstance(features, Tensor) else features.dtype.kind == "f"
        if not floating:
            raise ValueError(
                f"{name} must be of a float type (float16, bfloat16, float32, float64), not {features.dtype}"
            )
        self.features = features.detach() if isinstance(features, Tensor) else features
        self.name = name
        self.device = features.device if isinstance(features, Tensor) else torch.device("cpu")
        self.dim = int(features.shape[1])
        self._length: Tensor | None = None  # (n,), kept once `fault` has found it

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        """Return some of the rows at unit length, in float32."""
        rows = self._raw(which)
        return rows / (_length(rows) if self._length is None else self._length[which])[:, None]

    def chunks(self, width: int) -> Iterator[slice]:
        """Yield consecutive slices of rows, sized so that the scores of a chunk against `width` prototypes fit."""
        step = self.at_once(width)
        for start in range(0, len(self), step):
            yield slice(start, min(start + step, len(self)))

    def at_once(self, width: int) -> int:
        """Return how many rows a chunk has."""
        # A row is held up to four times: as it is, at unit length, and in float64, which counts double.
        return chunk_size(self.device, max(width, 4 * self.dim))

    def sums(self, index: Tensor, count: int) -> Tensor:
        """Return the sum (count, D) of the rows of each group; `index` (n,): the group of each row, −1 for none."""
        groups = torch.where(index < 0, count, index)
        sums = torch.zeros(count + 1, self.dim, dtype=accumulator(self.device), device=self.device)
        for chunk in self.chunks(self.dim):
            sums.index_add_(0, groups[chunk], self[chunk].to(sums.dtype))
        return sums[:count]

    def fault(self) -> str | None:
        """Return what is wrong with the first row that has no direction, or None."""
        lengths = []
        for chunk in self.chunks(self.dim):
            length = _length(self._raw(chunk))
            bad = ~(length.isfinite() & (length >= SHORTEST))
            if bad.any():
                row = int(bad.nonzero()[0])
                what = (
                    "has length 0 in float32"
                    if length[row] < SHORTEST
                    else "is not finite (NaN, infinite or too large for float32)"
                )
                return f"row {chunk.start + row} of {self.name} {what}: every row needs a direction"
            lengths.append(length)
        self._length = torch.cat(lengths) if lengths else None
        return None

    def _raw(self, which: slice | Tensor) -> Tensor:
        if isinstance(self.features, Tensor):
            return self.features[which].float()
        where = which if isinstance(which, slice) else which.cpu().numpy()
        with np.errstate(over="ignore", under="ignore"):  # `fault` finds values that do not fit
            return torch.from_numpy(np.array(self.features[where], dtype=np.float32, order="C"))


def _length(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=accumulator(rows.device)).to(rows.dtype)


def chunk_size(device: torch.device, width: int) -> int:
    """Return how many rows of `width` values are processed at a time."""
    return max(1, CHUNK_VALUES.get(device.type, CHUNK_VALUES_ELSEWHERE) // width)


def accumulator(device: torch.device) -> torch.dtype:
    """Return the type for sums of squares and of rows: in float64 they neither overflow nor depend on the order."""
    return torch.float32 if device.type == "mps" else torch.float64
