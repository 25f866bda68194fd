"""SwAV: predict from one crop which prototypes another crop of the image was assigned to.

Mathilde Caron, Ishan Misra, Julien Mairal, Priya Goyal, Piotr Bojanowski and Armand Joulin. Unsupervised Learning of
Visual Features by Contrasting Cluster Assignments. NeurIPS 2020, arXiv:2006.09882.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks
from hirl.data.views import Jitter, View, multi_crop
from hirl.encoders import backbones
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Output, Plan, Rates, full_precision, warmed_up_cosine
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.augmentations import blur_unless_small, local_crop_size
from hirl.methods.parts.cross_view import by_size, cross_view_entropy
from hirl.methods.parts.lars import LARS
from hirl.methods.parts.mlp import MLP
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm

SMALLEST_EPSILON = 0.025  # so that exp(−2 / ε), the smallest entry, does not underflow in single precision


class Network(nn.Module):
    """Backbone and projector: crops → z⁰."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, crops: list[Tensor]) -> Tensor:
        """Crops of V views, each (B, C, s, s) → (V · B, D).

        Batch norm takes crops of equal size together in the backbone, and all crops together in the projector.
        """
        z0: Tensor = self.head(torch.cat([self.backbone(torch.cat(equal)) for equal in by_size(crops)]))
        return z0


@dataclass(kw_only=True, eq=False, repr=False)
class SwAV(Method):
    """SwAV: predict the balanced prototype assignment of another crop.

    Args:
        backbone: timm name of the encoder.
        backbone_args: Further arguments of the backbone for timm, such as {"channels": [32, 64, 128, 256]}.
        dim: Dimension of z⁰, the projector's output.
        hidden: Width of the projector's hidden layer.
        head_batch_norm: Whether batch norm is applied to z⁰. The original has none; short runs on small images collapse
            without it.
        prototypes: K, the number of prototypes that crops are assigned to.
        local_crops: Local crops per image, besides the two global ones.
        local_size: Side of a local crop in pixels; by default 3/7 of the image's, as a multiple of 8.
        temperature: Temperature of the predictions' softmax.
        epsilon: Entropy regularisation of the assignments: the smaller, the sharper; at least 0.025.
        iterations: Sinkhorn-Knopp iterations that balance the assignments over the prototypes.
        frozen_epochs: Epochs during which the prototypes stay fixed.
        queue_length: Stored embeddings per global crop that are balanced together with the batch; a multiple of the
            batch size, 0 for none. Needed when the batch is much smaller than the number of prototypes.
        queue_epoch: Epoch, counted from 0, in which the queue starts to fill; it is used once it is full.
        lr: Peak learning rate of LARS per 256 images; 4.8 at batch 4096.
        start_lr: Learning rate at the start of the warm-up per 256 images; 0.3 at batch 4096.
        final_lr: Learning rate at the end of the run per 256 images; 4.8e-3 at batch 4096.
        warmup_epochs: Epochs of linear warm-up from `start_lr`.
        weight_decay: Weight decay of all parameters.
        sgd_momentum: Momentum of LARS.
    """

    backbone: str = "resnet50"
    backbone_args: dict[str, Any] | None = None
    dim: int = 128
    hidden: int = 2048
    head_batch_norm: bool = False
    prototypes: int = 3000
    local_crops: int = 6
    local_size: int | None = None
    temperature: float = 0.1
    epsilon: float = 0.05
    iterations: int = 3
    frozen_epochs: float = 1.0
    queue_length: int = 0
    queue_epoch: int = 15
    lr: float = 0.3
    start_lr: float = 0.01875
    final_lr: float = 3e-4
    warmup_epochs: float = 10.0
    weight_decay: float = 1e-6
    sgd_momentum: float = 0.9

    facts = Facts(
        linear=LinearTraining(lr=0.3, weight_decay=1e-6, batch_size=256, epochs=100),
        online_assignment=True,
        gradient_views=4,
    )

    # Networks

    def build(self, plan: Plan) -> None:
        self.plan = plan
        self._check(plan)
        backbone = backbones.make_backbone(
            self.backbone, **backbones.open_residual_branches(self.backbone) | self.encoder_args
        )
        head = MLP(backbones.width(backbone), self.hidden, self.dim)
        if self.head_batch_norm:
            head.layers.append(nn.BatchNorm1d(self.dim, affine=False))
        self.network = Network(backbone, head)
        synchronise_batch_norm(self.network)
        self.prototype_layer = nn.Linear(self.dim, self.prototypes, bias=False)  # (K, D)
        self._normalise_prototypes()
        self.queue: Tensor
        self.register_buffer("queue", torch.zeros(self.queue_length, 2, self.dim))
        self._new_embeddings: list[Tensor] = []  # of this step's batches, until `after_step`

    def _check(self, plan: Plan) -> None:
        check_ranges(self)
        if self.queue_length < 0 or self.queue_length % plan.batch_size:
            fitting = max(1, round(self.queue_length / plan.batch_size)) * plan.batch_size
            raise ValueError(
                f"queue_length is {self.queue_length}, but must be a multiple of the batch of {plan.batch_size} "
                f"images, or 0 for no queue: {fitting} fits"
            )
        if self.epsilon < SMALLEST_EPSILON:
            raise ValueError(f"epsilon is {self.epsilon}, but must be at least {SMALLEST_EPSILON}")
        if plan.batch_size < 2:
            raise ValueError(f"batch_size is {plan.batch_size}, but must be at least 2 to balance over prototypes")

    @property
    def encoder(self) -> nn.Module:
        return self.network.backbone

    @property
    def outputs(self) -> int:
        return self.prototypes

    remedy = (
        "use an epsilon well below the temperature, keep the prototypes fixed for longer (frozen_epochs), set "
        "head_batch_norm, or lower the learning rate"
    )

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        """Two global crops of .14 to 1 of the image's area, local crops of .05 to .14; MoCo v2's jitter doubled."""
        jitter = Jitter(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, probability=0.8)
        blur = blur_unless_small(image_size, 0.5)
        large = View(size=image_size, scale=(0.14, 1.0), jitter=jitter, grey=0.2, blur=blur)
        local_size = local_crop_size(image_size, 8) if self.local_size is None else self.local_size
        return multi_crop((large, large), replace(large, size=local_size, scale=(0.05, 0.14)), self.local_crops)

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        images = len(views[0])
        z0 = full_precision(self.network(views))  # (V · B, D)
        with torch.autocast(z0.device.type, enabled=False):
            units = F.normalize(z0, dim=1)
            cosines = (units @ self.prototype_layer.weight.T).unflatten(0, (-1, images))  # (V, B, K)
            targets = self._assignments(cosines[:2].detach(), step)
            loss = cross_view_entropy(cosines / self.temperature, targets)
        if self.training and self.queue_length and step >= self._queue_start:
            crops = units[: 2 * images].detach().unflatten(0, (2, images))
            self._new_embeddings.append(ranks.world().gather(crops.transpose(0, 1)))  # (ranks · B, 2, D)
        return Output(
            loss=loss,
            z0=z0[:images],
            target_z0=z0[images : 2 * images].detach(),
            logs={"code_entropy": torch.special.entr(targets).sum(-1).mean()},
        )

    @torch.no_grad()
    def _assignments(self, cosines: Tensor, step: int) -> Tensor:
        """(2, B, K): the assignments of the global crops, balanced over the batches of all ranks and the queue."""
        images = cosines.shape[1]
        if self.queue_length and step >= self._queue_start + self.queue_length // self.plan.batch_size:
            earlier = ranks.world().share(self.queue) @ self.prototype_layer.weight.T  # (length / ranks, 2, K)
            cosines = torch.cat((cosines, earlier.transpose(0, 1)), dim=1)
        return sinkhorn(cosines, epsilon=self.epsilon, iterations=self.iterations)[:, :images]

    @property
    def _queue_start(self) -> int:
        return self.queue_epoch * self.plan.steps_per_epoch

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.network([images])
        return z0

    # Update

    def before_update(self, step: int) -> None:
        if step < self.frozen_epochs * self.plan.steps_per_epoch:
            self.prototype_layer.weight.grad = None

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Normalise the prototypes and replace the oldest embeddings of the queue by those of the step."""
        self._normalise_prototypes()
        if self._new_embeddings:
            embeddings = torch.cat(self._new_embeddings)
            self._new_embeddings.clear()
            start = step * self.plan.batch_size % self.queue_length
            self.queue[start : start + len(embeddings)] = embeddings

    def skip_step(self) -> None:
        self._new_embeddings.clear()

    @torch.no_grad()
    def _normalise_prototypes(self) -> None:
        weight = self.prototype_layer.weight
        weight.copy_(F.normalize(weight, dim=1))

    # Optimiser

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return LARS(groups, lr=self.peak_lr, momentum=self.sgd_momentum, weight_decay=self.weight_decay)

    def rates(self, step: int) -> Rates:
        start, end = (lr * self.plan.batch_size / 256 for lr in (self.start_lr, self.final_lr))
        lr = warmed_up_cosine(
            self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=start, end=end
        )
        return Rates(lr=lr, weight_decay=self.weight_decay)


@torch.no_grad()
def sinkhorn(cosines: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Assignments of n rows to K prototypes that use all prototypes equally over the rows of all ranks.

    (G, n, K) → (G, n, K) for G independent sets; every row sums to 1. Each iteration scales every prototype to an equal
    share of the rows, then every row to 1. Only the scales are updated: the matrix is read and never rewritten, and
    only K sums are exchanged between ranks.
    """
    rows, prototypes = cosines.shape[1:]
    matrix = ((cosines - 1) / epsilon).exp()
    of_row = torch.ones_like(matrix[..., 0])  # (G, n)
    for _ in range(iterations):
        sums = ranks.world().mean(torch.einsum("gnk,gn->gk", matrix, of_row))
        of_prototype = rows / prototypes / sums
        of_row = torch.einsum("gnk,gk->gn", matrix, of_prototype).reciprocal()
    return matrix * of_prototype.unsqueeze(1) * of_row.unsqueeze(2)
