"""The settings of a run: as given, with gaps, and resolved, without gaps."""

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
    """Arguments of `hirl.pretrain`. None, "auto" and a method's class are yet to be resolved."""

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
    """All settings that determine the result of a run, resolved: the content of config.yaml."""

    data: str
    method: Method
    hierarchy: ResolvedHierarchy | None
    epochs: int
    batch_size: int
    image_size: int
    neighbours: float

    @property
    def part_size(self) -> int:
        """Images of a batch that are in memory at once, over all processes."""
        return self.batch_size // self.accumulate


def earlier_settings(run: Run, method: type[Method]) -> Settings | None:
    """The settings of a run that can be continued; choosing again could differ, since free memory may have changed."""
    if not run.exists or not (run.checkpoint_file.is_file() or run.saved):
        return None
    settings = Settings(**load(Settings, run.config, source=str(run.config_file), classes=[method]))
    return settings if type(settings.method) is method else None
