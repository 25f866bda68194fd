"""A run in progress on this process: what all parts of training share."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_fabric import Fabric

from hirl.run import Run
from hirl.train.settings import Settings
from hirl.train.start import Start
from hirl.train.training_images import TrainingImages


@dataclass(frozen=True)
class Job:
    """One run with its folder, settings and images. `start` is None if it is trained from scratch."""

    fabric: Fabric
    run: Run
    settings: Settings
    data: TrainingImages
    start: Start | None

    @property
    def is_first(self) -> bool:
        """Whether this process writes and prints."""
        return self.fabric.is_global_zero

    def announce(self, message: str) -> None:
        """Print a message and add it to the run's log, on the first process."""
        if self.is_first:
            self.run.log(message)
            print(message, flush=True)
