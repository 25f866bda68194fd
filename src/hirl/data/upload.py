"""Copies to the device that do not wait for the work it has yet to do."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`, copied to a GPU from pinned memory, so that the CPU does not wait for the last step."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
