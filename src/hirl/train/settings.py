"""The settings of a run: those that are given, with gaps, and those that decide its result, with nothing left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hirl.config.parser import load
from hirl.encoders.last_blocks import Blocks
from hirl.hierarchy.settings import Hierarchy, ResolvedHierarchy
from hirl.methods.base import Method
from hirl.processes import Precision
from hirl.run import Run


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """What `hirl.pretrain` was asked for. None and "auto" are resolved; so is a class, whose arguments are chosen."""

    data: Any
    method: Method | type[Method]
    hierarchy: Hierarchy | None
    epochs: int | None
    batch_size: int | None
    image_size: int | None
    seed: int
    split: str | None
    channels: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    precision: Precision
    accumulate: int
    encoder: str | None
    cached_views: int
    neighbours: float | None
    unfreeze: Blocks


@dataclass(frozen=True, kw_only=True)
class Settings(GivenSettings):
    """All that decides the result of a run, with nothing left open: what config.yaml holds."""

    data: str
    method: Method
    hierarchy: ResolvedHierarchy | None
    epochs: int
    batch_size: int
    image_size: int
    neighbours: float

    @property
    def part_size(self) -> int:
        """Images of a batch, over all processes, that are in memory at once."""
        return self.batch_size // self.accumulate


def earlier_settings(run: Run, method: type[Method]) -> Settings | None:
    """The settings of the run in the folder if it can be continued: free memory may have changed since."""
    if not run.exists or not (run.checkpoint_file.is_file() or run.saved):
        return None
    settings = Settings(**load(Settings, run.config, source=str(run.config_file), classes=[method]))
    return settings if type(settings.method) is method else None
