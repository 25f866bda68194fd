"""Training a detector from any step on: its state is one dictionary, all else a function of (seed, step, image).

So training that was killed anywhere and is continued ends in the same bits on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hirl.data.views.render import Normalisation
from hirl.evals.base import no_message
from hirl.evals.detection.detector import Detector, float_images, padded
from hirl.evals.detection.pyramid import PyramidBody
from hirl.evals.detection.regions import Target
from hirl.evals.detection.samples import Drawn, TrainingSamples, parts
from hirl.evals.detection.schedule import Schedule, make_optimiser
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.seeds import mix_seed
from hirl.terminal.progress import Progress, no_progress

FORWARD = 20  # stream of random numbers
PRECISE_STEPS = (
    200  # batches that the statistics of batch norm are taken from in the end, as MoCo's configuration has it
)


@dataclass(frozen=True)
class Positions(Sequence[int]):
    """Places in the row of training images that one process reads from a step on: its share of every batch."""

    start: int
    stop: int  # steps
    batch: int
    rank: int
    ranks: int

    def __len__(self) -> int:
        return (self.stop - self.start) * (self.batch // self.ranks)

    def __getitem__(self, item: Any) -> Any:
        raise TypeError("positions are read in order")

    def __iter__(self) -> Iterator[int]:
        mine = self.batch // self.ranks
        for step in range(self.start, self.stop):
            first = step * self.batch + self.rank * mine
            yield from range(first, first + mine)


@dataclass
class Training:
    """Trains `detector` in place. `checkpoint` is where its state is kept; None: nowhere."""

    fabric: Fabric
    detector: Detector
    schedule: Schedule
    samples: TrainingSamples
    normalisation: Normalisation
    identity: str  # of everything that decides the outcome: a checkpoint of another one is not continued
    checkpoint: Path | None = None
    accumulate: int = 1
    workers: int = 0
    save_every: float = 600.0  # seconds
    progress: Progress = no_progress
    message: Callable[[str], None] = no_message

    def __post_init__(self) -> None:
        pieces = self.accumulate * self.fabric.world_size
        if self.schedule.batch_size % pieces:
            raise ValueError(
                f"a batch of {self.schedule.batch_size} images cannot be cut into {pieces} equal parts "
                f"({self.fabric.world_size} processes × accumulate {self.accumulate}): choose another batch_size"
            )

    def fit(self) -> None:
        """All steps that are left; then the detector is in eval mode, the same on every process."""
        optimiser = make_optimiser(self.detector, self.schedule)
        module, optimiser = self.fabric.setup(self.detector, optimiser)
        start = self._load(optimiser)
        steps, began = self.schedule.steps, time.monotonic()
        saved = began
        devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            module.train()
            for step, pieces in enumerate(self._batches(start, steps), start=start):
                loss = self._step(module, optimiser, step, pieces)
                if step + 1 < steps and time.monotonic() - saved >= self.save_every:
                    self._save(step + 1, optimiser)
                    saved = time.monotonic()
                    left = (saved - began) / (step + 1 - start) * (steps - step - 1)
                    self.message(
                        f"detection: step {step + 1:,} of {steps:,}, loss {loss:.3f}, about {left / 60:,.0f} min left"
                    )
                self.progress("detection: train", step + 1, steps)
            if start < steps:
                self._settle_batch_norm(module)
                self._save(steps, None)
        if self.fabric.world_size > 1:  # the statistics of batch norm may differ in their last digits
            for buffer in self.detector.buffers():
                torch.distributed.broadcast(buffer, 0)
        self.detector.eval()

    def _batches(self, start: int, stop: int) -> Iterator[list[list[Drawn]]]:
        """Per step its parts."""
        world = self.fabric.world_size
        positions = Positions(start, stop, self.schedule.batch_size, self.fabric.global_rank, world)
        size = self.schedule.batch_size // (world * self.accumulate)
        pieces: list[list[Drawn]] = []
        for piece in parts(self.samples, positions, size, self.workers):
            pieces.append(piece)
            if len(pieces) == self.accumulate:
                yield pieces
                pieces = []

    def _step(self, module: Any, optimiser: Any, step: int, pieces: list[list[Drawn]]) -> float:
        """Takes one step and gives its loss, that of this process's images."""
        torch.manual_seed(mix_seed(self.samples.seed, FORWARD, step))  # drop path draws from torch's own generator
        rate = self.schedule.lr * self.schedule.share(step)
        for group in optimiser.param_groups:
            group["lr"] = rate * group["share"]
        sums = []
        for place, piece in enumerate(pieces):
            with self.fabric.no_backward_sync(module, enabled=place + 1 < len(pieces)):
                losses = self._losses(module, piece)
                total = torch.stack(list(losses.values())).sum()
                if not total.isfinite():
                    parted = ", ".join(f"{name} {float(loss.detach()):.3g}" for name, loss in losses.items())
                    raise ValueError(
                        f"training diverged at step {step + 1} of {self.schedule.steps} at a rate of {rate:.3g} "
                        f"({parted}): choose a lower lr"
                    )
                self.fabric.backward(total / len(pieces))
                sums.append(float(total.detach()))
        optimiser.step()
        optimiser.zero_grad()
        return sum(sums) / len(sums)

    def _losses(self, module: Any, piece: list[Drawn]) -> dict[str, Tensor]:
        device = self.fabric.device
        shown = [drawn.sample.image.to(device) for drawn in piece]
        images = float_images(shown, self.normalisation.mean, self.normalisation.std)
        sizes = [drawn.sample.size for drawn in piece]
        targets = [_target(drawn, device) for drawn in piece]
        _, losses = module(padded(images, self.detector.multiple), sizes, targets, [drawn.seed for drawn in piece])
        return cast(dict[str, Tensor], losses)

    @torch.no_grad()
    def _settle_batch_norm(self, module: Any) -> None:
        """Statistics of batch norm as the mean over many batches rather than the moving one (C4 only)."""
        if isinstance(self.detector.body, PyramidBody):
            return
        norms = [layer for layer in self.detector.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        kept = [layer.momentum for layer in norms]
        steps = min(PRECISE_STEPS, self.schedule.steps)
        done = 0
        for pieces in self._batches(0, steps):
            for piece in pieces:
                done += 1
                for layer in norms:
                    layer.momentum = 1 / done
                self._losses(module, piece)
            self.progress("detection: batch norm", done // self.accumulate, steps)
        for layer, momentum in zip(norms, kept, strict=True):
            layer.momentum = momentum

    def _save(self, step: int, optimiser: Any) -> None:
        """In the end, without the optimiser's state: what is left is the trained detector."""
        if self.checkpoint is None or not self.fabric.is_global_zero:
            return
        state = {} if optimiser is None else {"optimiser": optimiser.state_dict()}
        save_checkpoint(
            self.checkpoint,
            {"identity": self.identity, "step": step, "detector": self.detector.state_dict()} | state,
        )

    def _load(self, optimiser: Any) -> int:
        """The step to go on from; 0 without a checkpoint."""
        if self.checkpoint is None or not self.checkpoint.is_file():
            return 0
        state = load_checkpoint(self.checkpoint)
        if state.get("identity") != self.identity:
            raise ValueError(f"{str(self.checkpoint)!r} belongs to another training: move it away")
        self.detector.load_state_dict(state["detector"])
        if "optimiser" in state:
            optimiser.load_state_dict(state["optimiser"])
        return int(state["step"])


def _target(drawn: Drawn, device: torch.device) -> Target:
    sample = drawn.sample
    target: Target = {"boxes": sample.boxes.to(device), "labels": sample.labels.to(device)}
    if sample.masks is not None:
        target["masks"] = sample.masks.to(device)
    return target
