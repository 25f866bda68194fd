"""Estimates before the first step whether a run fits into memory, and names options that help if it does not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hirl.methods.base import Method, Plan
from hirl.methods.parts.set_size import power_of_two
from hirl.train.machine import Machine, size_text

PROCESS = 900e6  # bytes of Python with PyTorch and the other libraries
WORKER = 250e6  # bytes of each process that reads images
ACTIVATION_FACTOR = 1.3  # on the stored activations: the backward pass also holds their gradients, layer by layer
WARN = 0.8  # share of the free memory above which a warning is given


@dataclass(frozen=True)
class Need:
    """The memory of a run in bytes: a part that is independent of the batch, and a part per image."""

    fixed: float
    per_image: float
    images: int  # at once, on one device

    @property
    def total(self) -> float:
        return self.fixed + self.per_image * self.images


def estimate_need(
    method: Method, plan: Plan, *, images: int, N: int, workers: int, device: str, mixed: bool = False
) -> Need | None:
    """Estimate from the activations that a forward pass of a few images stores; None if the method fails on so few.

    A copy of the method runs, whose networks must be built. `images`: those of a forward pass on one device; only the
    memory of a CPU holds Python and the workers too. `mixed`: whether the forward pass runs in half precision.
    """
    activations = _activations(method, plan, images)
    if activations is None:
        return None
    # Trained tensors count four times: weights, gradients and two moments. Momentum encoders and queues count once.
    weights = sum(_bytes(weight) * (4 if weight.requires_grad else 1) for weight in method.parameters())
    weights += sum(map(_bytes, method.buffers()))
    bank = N * method.dim * (2 + 4)  # kept in half precision, clustered in single precision
    views = sum(view.size**2 for view in method.views(plan.image_size)) * plan.channels * 4
    fixed = weights + bank + (PROCESS + workers * WORKER if device == "cpu" else 0)
    return Need(fixed, activations * ACTIVATION_FACTOR * (0.6 if mixed else 1) + 3 * views, images)


def _activations(method: Method, plan: Plan, images: int) -> float | None:
    """Bytes per image that the forward pass stores for the backward pass."""
    views = method.views(plan.image_size)
    count = min(4, images)
    with torch.random.fork_rng(devices=[]):
        while count <= images:
            trial = copy.deepcopy(method).train()
            crops = [torch.rand(count, plan.channels, view.size, view.size) for view in views]
            masks = [
                None if view.mask is None else view.mask.draw(view.size, 0, 0, np.arange(count), number)
                for number, view in enumerate(views)
            ]
            own = {weight.untyped_storage().data_ptr() for weight in trial.parameters()}
            stored: dict[int, int] = {}

            def keep(tensor: Tensor, own: set[int] = own, stored: dict[int, int] = stored) -> Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    stored[storage.data_ptr()] = storage.nbytes()
                return tensor

            try:
                with saved_tensors_hooks(keep, lambda tensor: tensor):
                    trial(crops, masks, 0)
            except (ValueError, RuntimeError):  # such as a batch norm in more groups than there are images
                count *= 2
                continue
            return sum(stored.values()) / count
    return None


def check_memory(need: Need, machine: Machine, *, batch_size: int, accumulate: int) -> str | None:
    """Raise a ValueError that names options that would fit if a run does not; return a warning if it only just fits."""
    if need.total <= WARN * machine.free:
        return None
    of = f"the run needs about {size_text(need.total)} of memory, and {size_text(machine.free)} are free"
    room = WARN * machine.free - need.fixed
    fitting = power_of_two(room / need.per_image) if room >= need.per_image else 0
    if fitting >= 2:
        parts = -(-need.images // fitting)
        while batch_size % (parts * accumulate):
            parts += 1
        advice = f"--batch_size {batch_size * fitting // need.images}, --accumulate {parts * accumulate}"
        advice += ", or a smaller --image_size or backbone would fit"
    else:
        advice = "use a smaller --image_size or a smaller backbone"
    advice += "; without --method and --config, hirl pretrain chooses settings that fit"
    if need.total > machine.free:
        raise ValueError(f"{of}: {advice}")
    return f"{of}; if that is not enough: {advice}"


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextmanager
def memory_advice() -> Iterator[None]:
    """Turn an out-of-memory error into a ValueError that says which options help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise ValueError(
            "out of memory: use a smaller batch_size, split the batch with accumulate, a smaller image_size or "
            "backbone, or precision bf16-mixed"
        ) from error
