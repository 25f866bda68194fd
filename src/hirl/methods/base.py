"""The contract of a self-supervised method: everything training needs to know of one, and nothing about HIRL."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hirl.backbones import timm_arguments
from hirl.data.views import View


@dataclass(frozen=True)
class Plan:
    """What a method must know of the run it is built for. All of it is fixed before the first step."""

    epochs: int
    steps_per_epoch: int
    batch_size: int  # images a step, over all ranks
    image_size: int
    channels: int = 3

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Rates:
    """What the optimiser's groups are set to for one step; a group may scale or fix its own share."""

    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Output:
    """What one step gives."""

    loss: Tensor  # L_img, a scalar
    z0: Tensor  # (B, D) of the student for the first global view, with its graph
    target_z0: Tensor  # (B, D) of the second global view by the encoder `embed` uses, detached
    logs: Mapping[str, Tensor] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """One self-supervised method.

    The constructor stores its typed, keyword-only arguments under their own names and does nothing else, so that a
    method can be written to YAML and back. `build` makes the networks; the caller has set the seed.
    """

    dim: int
    """D, the dimension of z⁰."""
    backbone: str
    """timm's name of the encoder."""
    backbone_args: dict[str, Any] | None
    """What timm is told beside the name, as the user gave it."""
    plan: Plan

    @property
    @abstractmethod
    def encoder(self) -> nn.Module:
        """What downstream tasks get: images (B, C, H, W) → pooled features."""

    @property
    def encoder_copies(self) -> list[nn.Module]:
        """Every copy of the encoder the method keeps: what starts from given weights starts from them in all."""
        return [self.encoder]

    @property
    def encoder_args(self) -> dict[str, Any]:
        """With these, `timm.create_model(backbone, num_classes=0, **encoder_args)` takes the encoder's weights."""
        given = self.backbone_args or {}
        if "in_chans" in given:
            raise ValueError("backbone_args may not set in_chans: the images have as many channels as they have.")
        return timm_arguments(self.backbone, in_chans=self.plan.channels, **given)

    @abstractmethod
    def build(self, plan: Plan) -> None:
        """Makes the networks."""

    @abstractmethod
    def views(self, image_size: int) -> tuple[View, ...]:
        """What the network sees of each image; the first two are the global views."""

    @abstractmethod
    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:
        """L_img and z⁰ of a batch's views, each (B, C, s, s). `step` counts all steps of the run from 0."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """(B, D): z⁰ of whole images for K-means; called in eval mode and without gradients."""

    @abstractmethod
    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """The trainable parameters of `module`, the method itself or heads that train with it, as optimiser groups.

        Keys beside `params`: `lr_scale` (default 1) and `wd_scale` (default 1) multiply the step's rates;
        `fixed_lr` (True) keeps the group at its peak rate.
        """

    @abstractmethod
    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """The method's optimiser over its own groups and whatever else trains with them."""

    @abstractmethod
    def rates(self, step: int) -> Rates:
        """Learning rate and weight decay of a step: the published schedule, scaled to the plan's batch."""

    @property
    @abstractmethod
    def peak_lr(self) -> float:
        """The learning rate after the warm-up, scaled to the plan's batch as the method's publication says."""

    @property
    def outputs(self) -> int | None:
        """How many outputs the loss spreads images over, if it does: `even_loss` stuck at ln(outputs) is collapse."""
        return None

    even_loss: ClassVar[str] = "loss_image"
    """What is ln(outputs) while every image looks the same: the loss itself, or one of `Output.logs`."""
    remedy: ClassVar[str] = "lower the learning rate, lengthen the warm-up or use fewer outputs"
    """What helps a run whose loss is stuck there."""

    def before_update(self, step: int) -> None:
        """After the backward pass and before the optimiser: clipped or dropped gradients."""

    def after_step(self, step: int) -> None:
        """After the optimiser: momentum encoders, centres, normalised prototypes."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments and their values, as plain data that YAML gives back unchanged."""
        return {name: _plain(getattr(self, name)) for name in inspect.signature(type(self)).parameters}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.arguments == other.arguments

    __hash__ = nn.Module.__hash__


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def cosine(start: float, end: float, share: float) -> float:
    """The value at `share` (0 … 1) of the way along half a cosine from `start` to `end`."""
    return end + (start - end) * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0))) / 2


def warmed_up_cosine(plan: Plan, step: int, *, peak: float, warmup_epochs: float, start: float, end: float) -> float:
    """A straight line from `start` to `peak` over the warm-up, then half a cosine to `end`."""
    warmup = min(warmup_epochs * plan.steps_per_epoch, plan.steps)
    if step < warmup:
        return start + (peak - start) * step / warmup
    return cosine(peak, end, (step - warmup) / max(1.0, plan.steps - warmup))


def full_precision(tensor: Tensor) -> Tensor:
    """The tensor in at least single precision: what networks give under mixed precision is too coarse for a loss."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


@torch.no_grad()
def move_towards(slow: nn.Module, fast: nn.Module, momentum: float) -> None:
    """slow ← momentum · slow + (1 − momentum) · fast for all parameters, as one fused operation.

    Buffers are not averaged: batch norm's statistics follow the slow network's own batches.
    """
    targets: list[Tensor] = list(slow.parameters())
    sources: list[Tensor] = list(fast.parameters())
    torch._foreach_lerp_(targets, sources, 1 - momentum)
