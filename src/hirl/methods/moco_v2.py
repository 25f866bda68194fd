"""MoCo v2: contrastive learning with a queue of keys from a momentum encoder.

Xinlei Chen, Haoqi Fan, Ross Girshick and Kaiming He. Improved Baselines with Momentum Contrastive Learning. 2020,
arXiv:2003.04297.
Kaiming He, Haoqi Fan, Yuxin Wu, Saining Xie and Ross Girshick. Momentum Contrast for Unsupervised Visual Representation
Learning. CVPR 2020, arXiv:1911.05722.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks
from hirl.data.upload import upload
from hirl.data.views import View, pair
from hirl.encoders.backbones import make_backbone, open_residual_branches
from hirl.encoders.backbones import width as width_of
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Output, Plan, Rates, full_precision, move_towards, warmed_up_cosine
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.augmentations import moco_view
from hirl.methods.parts.mlp import MLP
from hirl.methods.parts.set_size import LARGE_SET, queue_length
from hirl.methods.parts.split_batch_norm import average_statistics, fitting_groups, split_batch_norm


@dataclass(kw_only=True, eq=False, repr=False)
class MoCoV2(Method):
    """MoCo v2: find the key of the same image among a queue of earlier keys.

    Args:
        backbone: timm name of the encoder.
        backbone_args: Further arguments of the backbone for timm, such as {"channels": [32, 64, 128, 256]}.
        dim: Dimension of z⁰, the projector's output.
        hidden: Width of the projector's hidden layer; by default that of the backbone's features.
        queue_length: K, the number of stored keys; a multiple of the batch size.
        momentum: Share of the key encoder kept per step.
        temperature: Temperature of the contrastive loss.
        bn_splits: Groups of the batch, counted over all ranks, that batch norm normalises separately. 1 on one device
            is plain batch norm, which leaks which key belongs to which query.
        lr: Peak learning rate of SGD per 256 images; 0.03 at batch 256.
        weight_decay: Weight decay of all parameters.
        sgd_momentum: Momentum of SGD.
        warmup_epochs: Epochs of linear warm-up from 0; the original has none.
    """

    backbone: str = "resnet50"
    backbone_args: dict[str, Any] | None = None
    dim: int = 128
    hidden: int | None = None
    queue_length: int = 65536
    momentum: float = 0.999
    temperature: float = 0.2
    bn_splits: int = 8
    lr: float = 0.03
    weight_decay: float = 1e-4
    sgd_momentum: float = 0.9
    warmup_epochs: float = 0.0

    facts = Facts(
        linear=LinearTraining(lr=30.0, batch_size=256, epochs=100, milestones=(60, 80), factor=0.1),
        time=1.0,
        gradient_views=1,
    )

    @classmethod
    def for_images(cls, images: int, batch_size: int) -> MoCoV2:
        """A network and a queue for so many images; in a small set, keys change faster and are harder to tell apart."""
        few = images < LARGE_SET
        return cls(
            backbone="resnet18" if few else "resnet50",
            queue_length=queue_length(images, batch_size, most=65536),
            momentum=0.99 if few else 0.999,
            temperature=0.1 if few else 0.2,
            bn_splits=fitting_groups(batch_size, 1, most=8) or 1,
        )

    # Networks

    def build(self, plan: Plan) -> None:
        self.plan = plan
        self._check(plan)
        network = make_backbone(self.backbone, **open_residual_branches(self.backbone) | self.encoder_args)
        if self.bn_splits > ranks.world().size and not self.has_adapter:
            split_batch_norm(network, self.bn_splits // ranks.world().size)
        width = width_of(network)
        head = MLP(width, self.hidden or width, self.dim, hidden_norm=False)
        self.query = nn.Sequential(OrderedDict(backbone=network, head=head))
        self.key = deepcopy(self.query).requires_grad_(False)
        self.queue: Tensor
        self.register_buffer("queue", F.normalize(torch.randn(self.queue_length, self.dim), dim=1))  # (K, D)
        self._new_keys: list[Tensor] = []  # of this step's batches, until `after_step`

    def _check(self, plan: Plan) -> None:
        check_ranges(self)
        if self.queue_length < plan.batch_size or self.queue_length % plan.batch_size:
            fitting = max(1, round(self.queue_length / plan.batch_size)) * plan.batch_size
            raise ValueError(
                f"queue_length is {self.queue_length}, but must be a multiple of the batch of {plan.batch_size} "
                f"images: {fitting} fits"
            )
        world, images, splits = ranks.world().size, plan.batch_size // plan.accumulate, self.bn_splits
        fits = splits >= 1 and splits % world == 0 and images % splits == 0 and images // splits >= 2
        if fits or self.has_adapter:  # the batch norm of a frozen network uses stored statistics
            return
        groups = fitting_groups(images, world, most=splits)
        batch = f"{images} images of {'the batch' if plan.accumulate == 1 else 'a part of the batch'}"
        raise ValueError(
            f"bn_splits is {splits}, but must {f'be a multiple of the {world} ranks and ' if world > 1 else ''}cut the "
            f"{batch} into equal groups of 2 or more: {'no value' if groups is None else groups} fits"
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
        """Two draws of one augmentation."""
        return pair(moco_view(image_size))

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        first, second = views
        z0 = full_precision(self.query(first))  # (B, D)
        all_keys = self._keys(second)
        if self.training:
            self._new_keys.append(F.normalize(all_keys, dim=1))
        target_z0 = ranks.world().share(all_keys)
        loss, accuracy = info_nce(z0, target_z0, self.queue, self.temperature)
        return Output(loss=loss, z0=z0, target_z0=target_z0, logs={"contrast_accuracy": accuracy})

    @torch.no_grad()
    def _keys(self, images: Tensor) -> Tensor:
        """z⁰ of the momentum encoder for the images of all ranks, in order: (ranks · B, D).

        The images are normalised in other groups than the queries: with the same groups, batch norm would leak which
        key belongs to which query.
        """
        world = ranks.world()
        if self.bn_splits == 1 or not self.training:
            return world.gather(full_precision(self.embed(images)))
        all_images = world.gather(images)
        order = world.broadcast(upload(torch.randperm(len(all_images)), images.device))
        mine = all_images[world.share(order)]
        return world.gather(full_precision(self.embed(mine)))[order.argsort()]

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.key(images)
        return z0

    # Update

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Update the key encoder and replace the oldest keys of the queue by those of the step.

        The original updates the key encoder at the start of the next forward pass, from the same parameters.
        """
        move_towards(self.key, self.query, self.momentum)
        average_statistics(self)
        if self._new_keys:
            keys = torch.cat(self._new_keys)
            self._new_keys.clear()
            start = step * self.plan.batch_size % self.queue_length
            self.queue[start : start + len(keys)] = keys

    def skip_step(self) -> None:
        self._new_keys.clear()

    # Optimiser

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            groups, lr=self.peak_lr, momentum=self.sgd_momentum, weight_decay=self.weight_decay, fused=True
        )

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=0.0)
        return Rates(lr=lr, weight_decay=self.weight_decay)


def info_nce(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The mean of −log p(own key | own key and queue) by cosine, and the share of queries closest to their own key.

    queries, keys: (B, D) of any norm; queue: (K, D) of unit norm.
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, keys = F.normalize(queries, dim=1), F.normalize(keys, dim=1)
        own = (queries * keys).sum(1, keepdim=True)  # (B, 1)
        others = queries @ queue.T  # (B, K)
        logits = torch.cat((own, others), dim=1) / temperature
        loss = F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))
    return loss, (own.detach() > others.detach().amax(1, keepdim=True)).float().mean()
