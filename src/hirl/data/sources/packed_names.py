"""Many names in one block of bytes.

A million of them are sent to a worker process in milliseconds, and reading them does not touch a million reference
counts, which would copy the memory of forked workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np


class PackedNames:
    """An immutable list of file names, which may contain any bytes."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._block = b"".join(encoded)
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)  # (N,)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._block[start : int(self._ends[index])])
