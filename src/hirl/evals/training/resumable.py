"""Training from any step on: its state is one dictionary, all else a function of (seed, step, image).

So training that was killed anywhere and is continued ends in the same bits on a CPU.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from hirl import ranks
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.seeds import Stream, mix_seed
from hirl.signals import Stopped, stop_signals
from hirl.terminal.progress import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SAVE_EVERY = 300.0  # seconds between checkpoints
CHECK_EVERY = 20  # steps between loss checks on a GPU
Piece = TypeVar("Piece")  # what a process gets of a batch, or of a part of it


@dataclass(kw_only=True)
class ResumableTraining(ABC, Generic[Piece]):
    """Trains a network in place, on one process or several. A subclass provides what its steps consist of."""

    kind: ClassVar[str]  # of the network: its name in the checkpoint
    fabric: Fabric
    network: nn.Module
    identity: str  # of everything that decides the outcome: a checkpoint of another one is not continued
    checkpoint: Path | None = None  # where the state is kept; None: nowhere
    accumulate: int = 1
    save_every: float | None = None  # seconds; None: SAVE_EVERY
    task: str = field(init=False)  # in messages; this and what follows is given by the subclass
    bar: str = field(init=False)  # in progress
    seed: int = field(init=False)
    progress: Progress = field(init=False)
    message: Callable[[str], None] = field(init=False)

    @property
    def trained(self) -> nn.Module:
        """The part of the network that is trained."""
        return self.network

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of all steps."""

    @abstractmethod
    def make_optimiser(self) -> torch.optim.Optimizer:
        """An optimiser whose groups have their peak rate as `peak`."""

    @abstractmethod
    def share(self, step: int) -> float:
        """The share of the peak rates that holds at a step."""

    @abstractmethod
    def batches(self, start: int, stop: int) -> Iterable[Sequence[Piece]]:
        """Per step this process's share of the batch, in `accumulate` parts."""

    @abstractmethod
    def losses(self, module: Any, piece: Piece, step: int, part: int) -> Mapping[str, Tensor]:
        """The losses by name, whose sum is minimised; `module` is the network as the processes share it."""

    @abstractmethod
    def divergence_message(self, step: int, losses: Mapping[str, Tensor]) -> str:
        """The message if the loss is not finite."""

    def is_finite(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Whether all losses are finite: a bool on the losses' device."""
        return torch.stack(list(losses.values())).isfinite().all()

    def finish(self, module: Any) -> None:
        """Called after the last step."""

    def fit(self) -> None:
        """Take all steps that are left; then the network is in eval mode, the same on every process."""
        module, optimiser = self.fabric.setup(self.network, self.make_optimiser())
        start = self._load(optimiser)
        self._unchecked: list[tuple[int, Mapping[str, Tensor]]] = []  # steps and losses since the last check
        world = ranks.world()
        steps, began = self.steps, time.monotonic()
        saved, every = began, SAVE_EVERY if self.save_every is None else self.save_every
        devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        # Without a checkpoint there is nothing to save, and a signal ends the process as it would any other.
        stops = nullcontext(lambda: False) if self.checkpoint is None else stop_signals()
        with torch.random.fork_rng(devices=devices), stops as should_stop:
            module.train()
            for step, pieces in enumerate(self.batches(start, steps), start=start):
                loss = self._step(module, optimiser, step, pieces)
                if self._checks_at(step + 1):
                    self._check_losses()
                    stop = bool(world.max(torch.tensor(float(should_stop()))))
                    # Only what was checked is saved.
                    if step + 1 < steps and (stop or time.monotonic() - saved >= every):
                        self._save(step + 1, optimiser)
                        if stop:
                            self.message(
                                f"{self.task}: stopped after step {step + 1:,} of {steps:,}; the same command continues"
                            )
                            self.fabric.barrier()  # whoever sees another process end may stop the first one
                            raise Stopped
                        saved = time.monotonic()
                        left = (saved - began) / (step + 1 - start) * (steps - step - 1)
                        self.message(
                            f"{self.task}: step {step + 1:,} of {steps:,}, loss {float(loss):.3f}, about "
                            f"{left / 60:,.0f} min left"
                        )
                self.progress(self.bar, step + 1, steps)
            if start < steps:
                self.finish(module)
                self._save(steps, None)
        if world.size > 1:  # the statistics of batch norm may differ in their last digits
            for buffer in self.network.buffers():
                buffer.copy_(world.broadcast(buffer))
        self.network.eval()

    def check_parts(self, batch_size: int) -> None:
        """Raise a ValueError unless a batch can be cut into equal parts."""
        if self.accumulate < 1:
            raise ValueError(f"accumulate is {self.accumulate}, but must be at least 1")
        pieces = self.accumulate * self.fabric.world_size
        if batch_size % pieces:
            raise ValueError(
                f"a batch of {batch_size} images cannot be cut into {pieces} equal parts "
                f"({self.fabric.world_size} processes × accumulate {self.accumulate}): choose another batch_size"
            )

    @property
    def _waits(self) -> bool:
        """Whether reading a loss makes the device wait, so that it is not done at every step."""
        return self.fabric.device.type != "cpu"

    def _checks_at(self, done: int) -> bool:
        """Whether losses are checked after this number of steps: the same on every process."""
        return not self._waits or done % CHECK_EVERY == 0 or done == self.steps

    def _check_losses(self) -> None:
        """Raise a ValueError about the first step since the last check with a loss that is not finite on some process.

        Gradients are shared, so that of one process spoils the weights of all; hence all of them stop.
        """
        if not self._unchecked:
            return
        flags = torch.stack([~self.is_finite(losses) for _, losses in self._unchecked])
        non_finite = ranks.world().max(flags.int())
        for failed, (step, losses) in zip(non_finite.tolist(), self._unchecked, strict=True):
            if failed:
                raise ValueError(self.divergence_message(step, losses))
        self._unchecked = []

    def _step(self, module: Any, optimiser: Any, step: int, pieces: Sequence[Piece]) -> Tensor:
        """Take one step and return its loss, that of this process's images."""
        # Drop path draws from torch's own generator.
        torch.manual_seed(mix_seed(self.seed, Stream.EVALUATION_FORWARD, step))
        share = self.share(step)
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * share
        sums: list[Tensor] = []
        for part, piece in enumerate(pieces):
            with self.fabric.no_backward_sync(module, enabled=part + 1 < len(pieces)):
                losses = self.losses(module, piece, step, part)
                if self._waits:
                    self._unchecked.append((step, {name: loss.detach() for name, loss in losses.items()}))
                elif not self.is_finite(losses):  # before the update, so that no weight is touched
                    raise ValueError(self.divergence_message(step, losses))
                total = torch.stack(list(losses.values())).sum()
                self.fabric.backward(total / len(pieces))
                sums.append(total.detach())
        optimiser.step()
        optimiser.zero_grad()
        return torch.stack(sums).mean()

    def _save(self, step: int, optimiser: Any) -> None:
        """Save the state; after the last step without the optimiser's."""
        if self.checkpoint is None or not self.fabric.is_global_zero:
            return
        state: dict[str, Any] = {"identity": self.identity, "step": step, self.kind: self.trained.state_dict()}
        if optimiser is not None:
            state["optimiser"] = optimiser.state_dict()
            state |= {"precision": scale} if (scale := self.fabric.strategy.precision.state_dict()) else {}
        save_checkpoint(self.checkpoint, state)

    def _load(self, optimiser: Any) -> int:
        """Restore the state and return the step to continue from; 0 without a checkpoint."""
        if self.checkpoint is None:
            return 0
        if self.fabric.is_global_zero:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            for left_over in self.checkpoint.parent.glob(f".{self.checkpoint.name}.*.part"):  # of a killed process
                left_over.unlink()
        if not self.checkpoint.is_file():
            return 0
        try:
            state = load_checkpoint(self.checkpoint)
        except ValueError as error:
            raise ValueError(f"{error}; delete it to train again from the start") from error
        if state.get("identity") != self.identity:
            raise ValueError(f"{str(self.checkpoint)!r} belongs to another training: move it away")
        self.trained.load_state_dict(state[self.kind])
        if "optimiser" in state:
            optimiser.load_state_dict(state["optimiser"])
        if "precision" in state:
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        step = int(state["step"])
        if 0 < step < self.steps:
            self.message(f"{self.task}: continued after step {step:,} of {self.steps:,}")
        return step
