"""The contract of a self-supervised method: everything training needs to know about it, and nothing about HIRL."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hirl.data.views import View
from hirl.encoders import backbones
from hirl.methods.facts import Facts


@dataclass(frozen=True)
class Plan:
    """The facts about a run that a method is built for. All are fixed before the first step."""

    epochs: int
    steps_per_epoch: int
    batch_size: int  # images per step, over all ranks
    image_size: int
    channels: int = 3
    accumulate: int = 1  # parts that a batch is split into

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Rates:
    """Learning rate and weight decay of one step; a parameter group may scale them or keep the peak rate."""

    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Output:
    """The result of one forward pass.

    `target_z0` is kept for clustering and looked up in the tree: z⁰ of a view of the same image by the encoder that
    `embed` uses, the second global view if there is one. Without it, `z0` takes its place.
    """

    loss: Tensor  # L_img, a scalar
    z0: Tensor  # (B, D) by the student for the first view, with its graph
    target_z0: Tensor | None = None  # (B, D), detached
    logs: Mapping[str, Tensor] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """One self-supervised method.

    The constructor stores its typed, keyword-only arguments under their own names and does nothing else, so that a
    method can be written to YAML and back; `@dataclass(kw_only=True, eq=False, repr=False)` writes such a constructor.
    `build` makes the networks; the caller sets the seed first.
    """

    dim: int
    """D, the dimension of z⁰."""
    backbone: str
    """The encoder's name in timm."""
    backbone_args: dict[str, Any] | None
    """Further arguments of the encoder for timm, as the user gave them."""
    lr: float
    """Peak learning rate per 256 images; a method without this argument defines `peak_lr` itself."""
    plan: Plan
    _fixed: tuple[nn.Module, ...] = ()
    facts: ClassVar[Facts] = Facts()
    """What is published and measured about the method; others need not know which method it is."""

    def __post_init__(self) -> None:
        """Called by the constructor of a dataclass, once it has stored the arguments."""
        super().__init__()

    @classmethod
    def for_images(cls, images: int, batch_size: int) -> Method:  # noqa: ARG003
        """The method for so many images in such batches on a GPU; by default with its default arguments."""
        return cls()

    @property
    @abstractmethod
    def encoder(self) -> nn.Module:
        """The network for downstream tasks: images (B, C, H, W) → pooled features."""

    @property
    def encoder_copies(self) -> list[nn.Module]:
        """Every copy of the encoder that the method keeps: given initial weights are loaded into all of them."""
        return [self.encoder]

    @property
    def trained_features(self) -> nn.Module:
        """The module whose first output in `forward` starts with the first view's features, with their graph."""
        return self.encoder

    def keep_in_eval(self, layers: Iterable[nn.Module]) -> None:
        """Keep these layers in eval mode from now on."""
        self._fixed = (*self._fixed, *layers)
        self.train(self.training)

    def train(self, mode: bool = True) -> Method:
        """Set the mode; layers of `keep_in_eval` stay in eval mode."""
        super().train(mode)
        for layer in self._fixed:
            layer.eval()
        return self

    @property
    def encoder_args(self) -> dict[str, Any]:
        """`timm.create_model(backbone, num_classes=0, **encoder_args)` makes a network for the encoder's weights."""
        given = self.backbone_args or {}
        if "in_chans" in given:
            raise ValueError("backbone_args may not set in_chans: the number of channels is that of the images")
        return backbones.timm_arguments(self.backbone, in_chans=self.plan.channels, **given)

    @property
    def has_adapter(self) -> bool:
        """Whether the backbone stays frozen, and an adapter on its features is trained."""
        return "adapter" in (self.backbone_args or {})

    @property
    def backbone_outline(self) -> nn.Module:
        """The backbone without weights, for checks and view sizes; available before `build`."""
        return backbones.outline(self.backbone, **self.backbone_args or {})

    @abstractmethod
    def build(self, plan: Plan) -> None:
        """Make the networks."""

    @abstractmethod
    def views(self, image_size: int) -> tuple[View, ...]:
        """The random views of each image that `forward` gets, one or more, the global ones first."""

    @abstractmethod
    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:
        """L_img and z⁰ of a batch's views, each (B, C, s, s). `step` counts all steps of the run from 0.

        `masks`: per view True for each hidden patch, (B, h, w), or None for a view without a mask.
        """

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """(B, D): z⁰ of unaugmented images for K-means; called in eval mode and without gradients."""

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """The trainable parameters of `module` (the method itself or heads that train with it) as optimiser groups.

        By default one group of all, biases and norms included. Keys besides `params`: `lr_scale` (default 1) and
        `wd_scale` (default 1) multiply the step's rates; `fixed_lr` (True) keeps the group at its peak rate.
        """
        return [{"params": [weight for weight in module.parameters() if weight.requires_grad]}]

    @abstractmethod
    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """The method's optimiser over its own parameter groups and those of the heads that train with it."""

    @abstractmethod
    def rates(self, step: int) -> Rates:
        """Learning rate and weight decay of a step: the published schedule, scaled to the plan's batch size."""

    @property
    def peak_lr(self) -> float:
        """The learning rate after the warm-up, scaled to the plan's batch size as published: by default linearly."""
        return self.lr * self.plan.batch_size / 256

    @property
    def outputs(self) -> int | None:
        """The number of classes K of a loss that equals ln K when the method collapses; None for other losses."""
        return None

    even_loss: ClassVar[str | None] = None
    """The figure that equals ln(outputs) in collapse: one of `Output.logs`, or None for the loss itself."""
    remedy: ClassVar[str] = "lower the learning rate, lengthen the warm-up or use fewer outputs"
    """Advice for a run whose `even_loss` stays at ln(outputs)."""

    def before_update(self, step: int) -> None:
        """Called after the backward pass and before the optimiser: drop gradients of parameters that stay fixed."""

    def clip_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Called after `before_update`: limit the gradients of all that trains, heads that train with it included."""

    def after_step(self, step: int) -> None:
        """Called after the optimiser: update momentum encoders, centres, queues, prototypes."""

    def skip_step(self) -> None:
        """Called in place of the hooks around the optimiser if gradients overflowed: forget what `forward` collected.

        Buffers that `forward` changed are restored by the caller.
        """

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments and their values as plain data, which YAML preserves."""
        parameters = inspect.signature(type(self)).parameters
        for kind, stars in ((inspect.Parameter.VAR_POSITIONAL, "*"), (inspect.Parameter.VAR_KEYWORD, "**")):
            for parameter in parameters.values():
                if parameter.kind is kind:
                    raise ValueError(
                        f"the constructor of {type(self).__name__} has {stars}{parameter.name}, but must name each of "
                        "its arguments, so that a run can be written to YAML"
                    )
        return {name: _plain(getattr(self, name)) for name in parameters}

    def unbuilt_copy(self) -> Method:
        """A new, unbuilt method with the same arguments."""
        return type(self)(**self.arguments)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.arguments == other.arguments

    __hash__ = nn.Module.__hash__


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def cosine(start: float, end: float, progress: float) -> float:
    """Half a cosine from `start` to `end`, at fraction `progress` (0 … 1)."""
    return end + (start - end) * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2


def warmed_up_cosine(plan: Plan, step: int, *, peak: float, warmup_epochs: float, start: float, end: float) -> float:
    """Linear from `start` to `peak` over the warm-up, then half a cosine to `end`."""
    warmup = min(warmup_epochs * plan.steps_per_epoch, plan.steps)
    if step < warmup:
        return start + (peak - start) * step / warmup
    return cosine(peak, end, (step - warmup) / max(1.0, plan.steps - warmup))


def full_precision(tensor: Tensor) -> Tensor:
    """The tensor in at least single precision: half-precision outputs of a network are too coarse for a loss."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


@torch.no_grad()
def move_towards(slow: nn.Module, fast: nn.Module, momentum: float) -> None:
    """slow ← momentum · slow + (1 − momentum) · fast for all parameters, in one fused operation.

    Buffers are not averaged: batch norm keeps the statistics of the slow network's own batches.
    """
    targets: list[Tensor] = list(slow.parameters())
    sources: list[Tensor] = list(fast.parameters())
    torch._foreach_lerp_(targets, sources, 1 - momentum)
