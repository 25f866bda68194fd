"""MoCo v2 (Chen et al. 2020; He et al. 2020): contrast with a queue of keys from a momentum encoder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.backbones import make_backbone, open_residual_branches
from hirl.backbones import width as width_of
from hirl.data import view_recipes
from hirl.data.views import View
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Output, Plan, Rates, full_precision, move_towards, warmed_up_cosine
from hirl.methods.parts import ranks
from hirl.methods.parts.split_batch_norm import average_statistics, split_batch_norm


class MoCoV2(Method):
    """MoCo v2.

    Arguments
        backbone, backbone_args: a timm name and what timm takes for it.
        dim, hidden: width of z⁰ and of the projector's hidden layer (None: as wide as the backbone).
        queue_length: K, the number of stored keys; a multiple of the batch.
        momentum: share of the key encoder that stays at a step.
        temperature: of the contrast.
        bn_splits: groups of the whole batch, over all ranks, that batch norm treats one by one. 1 on one device
            is plain batch norm, by which the network can tell the key of its own batch.
        lr, weight_decay, sgd_momentum: SGD; the rate is for a batch of 256 and scales with the batch.
        warmup_epochs: epochs of linear warm-up (the original has none).
    """

    def __init__(
        self,
        *,
        backbone: str = "resnet50",
        backbone_args: dict[str, Any] | None = None,
        dim: int = 128,
        hidden: int | None = None,
        queue_length: int = 65536,
        momentum: float = 0.999,
        temperature: float = 0.2,
        bn_splits: int = 8,
        lr: float = 0.03,
        weight_decay: float = 1e-4,
        sgd_momentum: float = 0.9,
        warmup_epochs: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.backbone_args = backbone_args
        self.dim = dim
        self.hidden = hidden
        self.queue_length = queue_length
        self.momentum = momentum
        self.temperature = temperature
        self.bn_splits = bn_splits
        self.lr = lr
        self.weight_decay = weight_decay
        self.sgd_momentum = sgd_momentum
        self.warmup_epochs = warmup_epochs

    # Networks

    def build(self, plan: Plan) -> None:
        from lightly.models.modules.heads import MoCoProjectionHead

        self._check(plan)
        self.plan = plan
        network = make_backbone(self.backbone, **open_residual_branches(self.backbone) | self.encoder_args)
        if self.bn_splits > ranks.size():
            split_batch_norm(network, self.bn_splits // ranks.size())
        width = width_of(network)
        head = MoCoProjectionHead(width, self.hidden or width, self.dim)
        self.query = nn.Sequential(OrderedDict(backbone=network, head=head))
        self.key = deepcopy(self.query).requires_grad_(False)
        self.queue: Tensor
        self.register_buffer("queue", F.normalize(torch.randn(self.queue_length, self.dim), dim=1))  # (K, D)
        self._new_keys: list[Tensor] = []  # of this step's batches, until the optimiser has moved

    def _check(self, plan: Plan) -> None:
        check_ranges(self)
        if self.queue_length < plan.batch_size or self.queue_length % plan.batch_size:
            fitting = max(1, round(self.queue_length / plan.batch_size)) * plan.batch_size
            raise ValueError(
                f"queue_length is {self.queue_length}, but must be a multiple of the batch of {plan.batch_size} images "
                f"over all ranks: {fitting} fits."
            )
        self._check_splits(plan.batch_size, ranks.size())

    def _check_splits(self, batch: int, world: int) -> None:
        def fits(splits: int) -> bool:
            return splits >= 1 and splits % world == 0 and batch % splits == 0 and batch // splits >= 2

        if not fits(self.bn_splits):
            fitting = [splits for splits in range(1, batch) if fits(splits)]
            nearest = min(fitting, key=lambda splits: abs(splits - self.bn_splits), default=None)
            raise ValueError(
                f"bn_splits is {self.bn_splits}, but must be a multiple of the {world} ranks and cut the batch of "
                f"{batch} images into equal groups of 2 or more: {'no value' if nearest is None else nearest} fits."
            )

    @property
    def encoder(self) -> nn.Module:
        return self.query.get_submodule("backbone")

    @property
    def encoder_copies(self) -> list[nn.Module]:
        return [network.get_submodule("backbone") for network in (self.query, self.key)]

    @property
    def outputs(self) -> int:
        return self.queue_length + 1

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        return view_recipes.moco_v2(image_size)

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        first, second = views
        z0 = full_precision(self.query(first.contiguous(memory_format=torch.channels_last)))  # (B, D)
        everyones = self._keys(second)
        if self.training:
            self._new_keys.append(F.normalize(everyones, dim=1))
        target_z0 = ranks.share(everyones)
        loss, accuracy = info_nce(z0, target_z0, self.queue, self.temperature)
        return Output(loss=loss, z0=z0, target_z0=target_z0, logs={"contrast_accuracy": accuracy})

    @torch.no_grad()
    def _keys(self, images: Tensor) -> Tensor:
        """z⁰ of the momentum encoder for the images of all ranks, in order: (ranks · B, D).

        The images are normalised in other groups than the queries' were: with the same ones, batch norm would betray
        which key belongs to which query.
        """
        if self.bn_splits == 1 or not self.training:
            return ranks.joined(full_precision(self.embed(images)))
        everyones = ranks.joined(images)
        order = ranks.first(torch.randperm(len(everyones)).to(images.device))
        mine = everyones[ranks.share(order)]
        return ranks.joined(full_precision(self.embed(mine)))[order.argsort()]

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.key(images.contiguous(memory_format=torch.channels_last))
        return z0

    # Update

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Moves the key encoder and puts the step's keys over the oldest of the queue.

        The original moves the key encoder at the start of the next forward pass, from the same parameters.
        """
        move_towards(self.key, self.query, self.momentum)
        average_statistics(self)
        if self._new_keys:
            keys = torch.cat(self._new_keys)
            self._new_keys.clear()
            start = step * self.plan.batch_size % self.queue_length
            self.queue[start : start + len(keys)] = keys

    # Optimiser

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        return [{"params": [weight for weight in module.parameters() if weight.requires_grad]}]

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            groups, lr=self.peak_lr, momentum=self.sgd_momentum, weight_decay=self.weight_decay, fused=True
        )

    @property
    def peak_lr(self) -> float:
        return self.lr * self.plan.batch_size / 256

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=0.0)
        return Rates(lr=lr, weight_decay=self.weight_decay)


def info_nce(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The mean of −log p(own key | own key and the queue) by cosine, and the share of queries nearest to their own.

    queries, keys: (B, D) of any length; queue: (K, D) of unit length.
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, keys = F.normalize(queries, dim=1), F.normalize(keys, dim=1)
        own = (queries * keys).sum(1, keepdim=True)  # (B, 1)
        others = queries @ queue.T  # (B, K)
        logits = torch.cat((own, others), dim=1) / temperature
        loss = F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))
    return loss, (own.detach() > others.detach().amax(1, keepdim=True)).float().mean()
