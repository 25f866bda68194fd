"""Training a detector: its batches, its losses, and the final statistics of batch norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from hirl.data.loader import grouped
from hirl.data.views.normalisation import Normalisation
from hirl.evals.base import no_message
from hirl.evals.detection.detector import Detector, float_images, padded
from hirl.evals.detection.pyramid import PyramidBody
from hirl.evals.detection.regions import Target, Targets
from hirl.evals.detection.samples import TrainingSample, TrainingSamples, parts
from hirl.evals.detection.schedule import Schedule, make_optimiser
from hirl.evals.training.resumable import ResumableTraining
from hirl.terminal.progress import Progress, no_progress

PRECISE_STEPS = 200  # batches for the final statistics of batch norm, as in MoCo's configuration


def positions_of(steps: range, batch: int, rank: int, ranks: int) -> Iterator[int]:
    """Positions in the sequence of training images that one process reads: its share of every step's batch."""
    share = batch // ranks
    for step in steps:
        first = step * batch + rank * share
        yield from range(first, first + share)


@dataclass(kw_only=True)
class Training(ResumableTraining[list[TrainingSample]]):
    kind: ClassVar[str] = "detector"
    task = "detection"
    bar = "detection: train"

    network: Detector
    schedule: Schedule
    samples: TrainingSamples
    normalisation: Normalisation
    workers: int = 0
    progress: Progress = no_progress
    message: Callable[[str], None] = no_message

    def __post_init__(self) -> None:
        self.seed = self.samples.seed
        self.check_parts(self.schedule.batch_size)
        self.network.set_drop_path(self.schedule.drop_path)
        if self.schedule.drop_path and not self.network.drop_paths:
            self.message(f"{self.task}: no drop path, as the transformer's blocks do not have any")

    @property
    def steps(self) -> int:
        return self.schedule.steps

    def make_optimiser(self) -> torch.optim.Optimizer:
        return make_optimiser(self.network, self.schedule)

    def share(self, step: int) -> float:
        return self.schedule.share(step)

    def batches(self, start: int, stop: int) -> Iterator[list[list[TrainingSample]]]:
        world = self.fabric.world_size
        positions = positions_of(range(start, stop), self.schedule.batch_size, self.fabric.global_rank, world)
        size = self.schedule.batch_size // (world * self.accumulate)
        yield from grouped(parts(self.samples, positions, size, self.workers), self.accumulate)

    def divergence_message(self, step: int, losses: Mapping[str, Tensor]) -> str:
        parted = ", ".join(f"{name} {float(loss.detach()):.3g}" for name, loss in losses.items())
        rate = self.schedule.lr * self.share(step)
        return (
            f"training diverged at step {step + 1} of {self.steps} at a rate of {rate:.3g} ({parted}): "
            "choose a lower lr"
        )

    def losses(
        self,
        module: Any,
        piece: list[TrainingSample],
        step: int = 0,  # noqa: ARG002
        part: int = 0,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        device = self.fabric.device
        shown = [drawn.sample.image.to(device) for drawn in piece]
        images = float_images(shown, self.normalisation.mean, self.normalisation.std)
        sizes = [drawn.sample.size for drawn in piece]
        targets = Targets([_target(drawn, device) for drawn in piece])
        _, losses = module(padded(images, self.network.multiple), sizes, targets, [drawn.seed for drawn in piece])
        return cast(dict[str, Tensor], losses)

    @torch.no_grad()
    def finish(self, module: Any) -> None:
        """Compute the statistics of batch norm as the mean over many batches rather than the moving one (C4 only)."""
        if isinstance(self.network.body, PyramidBody):
            return
        norms = [layer for layer in self.network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        kept = [layer.momentum for layer in norms]
        steps = min(PRECISE_STEPS, self.schedule.steps)
        done = 0
        for pieces in self.batches(0, steps):
            for piece in pieces:
                done += 1
                for layer in norms:
                    layer.momentum = 1 / done
                self.losses(module, piece)
            self.progress("detection: batch norm", done // self.accumulate, steps)
        for layer, momentum in zip(norms, kept, strict=True):
            layer.momentum = momentum


def _target(drawn: TrainingSample, device: torch.device) -> Target:
    sample = drawn.sample
    target: Target = {"boxes": sample.boxes.to(device), "labels": sample.labels.to(device)}
    if sample.masks is not None:
        target["masks"] = sample.masks.to(device)
    return target
