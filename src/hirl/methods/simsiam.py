"""SimSiam: each view predicts the other, without negatives, momentum encoder or large batches.

Xinlei Chen and Kaiming He. Exploring Simple Siamese Representation Learning. CVPR 2021, arXiv:2011.10566.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.data.views import View, pair
from hirl.encoders.backbones import make_backbone
from hirl.encoders.backbones import width as width_of
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method, Output, Plan, Rates, full_precision, warmed_up_cosine
from hirl.methods.facts import Facts, LinearTraining
from hirl.methods.parts.augmentations import moco_view
from hirl.methods.parts.mlp import MLP
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm


@dataclass(kw_only=True, eq=False, repr=False)
class SimSiam(Method):
    """SimSiam: predict one view of an image from the other, with a stop-gradient against collapse.

    Args:
        backbone: timm name of the encoder.
        backbone_args: Further arguments of the backbone for timm, such as {"channels": [32, 64, 128, 256]}.
        dim: Dimension of z⁰, the projector's output.
        hidden: Width of the projector's two hidden layers; by default that of the backbone's features.
        predictor_hidden: Width of the predictor's hidden layer; a quarter of `dim` in the original.
        lr: Peak learning rate of SGD per 256 images; 0.1 at batch 512. The predictor stays at it, the rest follows a
            cosine to 0.
        weight_decay: Weight decay of all parameters.
        sgd_momentum: Momentum of SGD.
        warmup_epochs: Epochs of linear warm-up from 0; the original has none.
    """

    backbone: str = "resnet50"
    backbone_args: dict[str, Any] | None = None
    dim: int = 2048
    hidden: int | None = None
    predictor_hidden: int = 512
    lr: float = 0.05
    weight_decay: float = 1e-4
    sgd_momentum: float = 0.9
    warmup_epochs: float = 0.0

    facts = Facts(linear=LinearTraining(optimiser="lars", lr=0.1, batch_size=4096, epochs=90))

    # Networks

    def build(self, plan: Plan) -> None:
        """Make the networks. A ResNet's residual branches start at 0, as in the original and by default in timm."""
        self.plan = plan
        check_ranges(self)
        if plan.batch_size < 2:
            raise ValueError(f"batch_size is {plan.batch_size}, but must be at least 2 for batch norm")
        network = make_backbone(self.backbone, **self.encoder_args)
        width = width_of(network)
        hidden = self.hidden or width
        projector = MLP(width, hidden, hidden, self.dim, output_norm=True)
        self.network = nn.Sequential(OrderedDict(backbone=network, projector=projector))
        self.predictor = MLP(self.dim, self.predictor_hidden, self.dim)
        synchronise_batch_norm(self)

    @property
    def encoder(self) -> nn.Module:
        return self.network.get_submodule("backbone")

    # Views

    def views(self, image_size: int) -> tuple[View, ...]:
        """Two draws of one augmentation, that of MoCo v2."""
        return pair(moco_view(image_size))

    # Loss

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        # One view at a time, so that batch norm has statistics per view. Each output predicts and is predicted.
        outputs = [full_precision(self.embed(view)) for view in views]  # 2 × (B, D)
        predictions = [full_precision(self.predictor(output)) for output in outputs]
        return Output(
            loss=prediction_loss(predictions, outputs),
            z0=outputs[0],
            target_z0=outputs[1].detach(),
            logs={"std": spread(torch.cat(outputs).detach())},
        )

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.network(images)
        return z0

    # Optimiser

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """The predictor must keep up with the changing outputs, so its learning rate does not fall (Appendix)."""
        predictors = {id(weight) for weight in self.predictor.parameters()}
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [weight for weight in weights if id(weight) not in predictors]},
            {"params": [weight for weight in weights if id(weight) in predictors], "fixed_lr": True},
        ]
        return [group for group in groups if group["params"]]

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            groups, lr=self.peak_lr, momentum=self.sgd_momentum, weight_decay=self.weight_decay, fused=True
        )

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(self.plan, step, peak=self.peak_lr, warmup_epochs=self.warmup_epochs, start=0.0, end=0.0)
        return Rates(lr=lr, weight_decay=self.weight_decay)


def prediction_loss(predictions: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
    """Minus the mean cosine between each view's prediction and the other view's output, without gradient (Eq. 2-4).

    predictions, outputs: 2 × (B, D) of any norm.
    """
    with torch.autocast(outputs[0].device.type, enabled=False):
        first = F.cosine_similarity(predictions[0], outputs[1].detach(), dim=1).mean()
        second = F.cosine_similarity(predictions[1], outputs[0].detach(), dim=1).mean()
        return -(first + second) / 2


def spread(outputs: Tensor) -> Tensor:
    """The standard deviation of unit-norm outputs (n, D) relative to a uniform spread: 0 is collapse (Fig. 2)."""
    return F.normalize(outputs, dim=1).std(0).mean() * math.sqrt(outputs.shape[1])
