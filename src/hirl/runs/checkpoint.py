"""The state of a run on disk: written atomically, read as tensors and plain data only."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor

from hirl.files import Damaged, atomic_write, verify

FORMAT = "hirl checkpoint 1"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the file at `path`. If that fails, the old file stays and an OSError is raised."""
    try:
        with atomic_write(path, checksum=True, needed=_size(state)) as aside:
            torch.save({"format": FORMAT} | state, aside)
    except OSError as error:
        kept = "; the last good checkpoint there is untouched" if path.exists() else ""
        raise OSError(f"{error}{kept}") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote. Anything else is a ValueError, and none of its code is run."""
    try:
        verify(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except (FileNotFoundError, PermissionError, Damaged):
        raise
    except Exception as error:  # torch fails in many ways on a damaged file
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{str(path)!r} is not a checkpoint of hirl, or is truncated or damaged: it holds more than tensors and "
            f"plain data, or cannot be read ({first.strip().rstrip('.')})"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"{str(path)!r} is not a checkpoint of hirl: its format is {found!r}, not {FORMAT!r}")
    return state


def is_checkpoint(path: Path) -> bool:
    """Whether the file is there and undamaged."""
    try:
        verify(path)
    except (OSError, Damaged):
        return False
    return is_zipfile(path)  # a truncated one has lost its checksum, too


def _size(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.nbytes
    inside = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(map(_size, inside))
