"""Means of figures over the steps of an epoch, or over those between two reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Means:
    """Means of figures, summed up on their device, since reading each value would make a GPU wait.

    A figure's mean is over the steps that report it. Sums are in double precision where the device has it, so that a
    long epoch loses no digits.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps: dict[str, int] = {}

    def add(self, figures: Mapping[str, Tensor]) -> None:
        """Add the figures of a step, scalars without a graph."""
        for name, value in figures.items():
            wide = value.to(torch.float32 if value.device.type == "mps" else torch.float64)
            self._sums[name] = self._sums[name] + wide if name in self._sums else wide
            self._steps[name] = self._steps.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        means = {name: float(value) / self._steps[name] for name, value in self._sums.items()}
        self._sums, self._steps = {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return {"sums": {name: value.cpu() for name, value in self._sums.items()}, "steps": dict(self._steps)}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._steps = dict(state["steps"])
