"""A seventh method in one file: SimCLR, which is not part of the package.

Ting Chen, Simon Kornblith, Mohammad Norouzi and Geoffrey Hinton. A Simple Framework for Contrastive Learning of Visual
Representations. ICML 2020, arXiv:2002.05709.

    PYTHONPATH=examples hirl pretrain shapes --method simclr.SimCLR --epochs 10
    PYTHONPATH=examples hirl pretrain shapes --method simclr.SimCLR --epochs 10 --hierarchy null
    PYTHONPATH=examples hirl views shapes --method simclr.SimCLR --out views.png
    hirl evaluate runs/shapes-simclr-hirl-0 knn

With several processes, each contrasts the images of its own part of the batch; `hirl.methods.MoCoV3` shows how keys of
the others are gathered.

HIRL, exact restarts, several processes, the collapse warning and every evaluation work with it. The constructor stores
its typed arguments, which become options of the command; `build` makes the networks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.data.views import Blur, Jitter, View, pair
from hirl.encoders.backbones import make_backbone, width
from hirl.methods import Method
from hirl.methods.base import Output, Plan, Rates, warmed_up_cosine


class SimCLR(Method):
    """SimCLR: find the other view of the same image among all views of the batch.

    Args:
        backbone: timm name of the encoder.
        backbone_args: Further arguments of the backbone for timm.
        dim: Dimension of z⁰, the projector's output.
        temperature: Temperature of the contrastive loss.
        lr: Peak learning rate of AdamW per 256 images.
        weight_decay: Weight decay of all parameters.
    """

    def __init__(
        self,
        *,
        backbone: str = "resnet18",
        backbone_args: dict[str, Any] | None = None,
        dim: int = 128,
        temperature: float = 0.2,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.backbone_args = backbone_args
        self.dim = dim
        self.temperature = temperature
        self.lr = lr
        self.weight_decay = weight_decay

    def build(self, plan: Plan) -> None:
        self.plan = plan
        self.network = make_backbone(self.backbone, **self.encoder_args)
        features = width(self.network)
        self.head = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, self.dim))

    @property
    def encoder(self) -> nn.Module:
        return self.network

    def views(self, image_size: int) -> tuple[View, ...]:
        blur = Blur() if image_size >= 64 else None  # it would erase smaller images
        return pair(View(size=image_size, scale=(0.2, 1.0), jitter=Jitter(), grey=0.2, blur=blur))

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        z = self.embed(torch.cat(views))  # (2 · B, D)
        first, second = z.chunk(2)
        loss = contrast(first, second, self.temperature)
        return Output(loss=loss, z0=first, target_z0=second.detach())

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.head(self.network(images.contiguous(memory_format=torch.channels_last)))
        return z0

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        return [{"params": [weight for weight in module.parameters() if weight.requires_grad]}]

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=self.peak_lr, weight_decay=self.weight_decay)

    @property
    def peak_lr(self) -> float:
        return self.lr * self.plan.batch_size / 256

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(self.plan, step, peak=self.peak_lr, warmup_epochs=1, start=0.0, end=0.0)
        return Rates(lr=lr, weight_decay=self.weight_decay)


def contrast(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """The mean of −log p(other view of the image | all other views), over both views of this process's images."""
    z = F.normalize(torch.cat((first, second)), dim=1)
    logits = (z @ z.T / temperature).fill_diagonal_(float("-inf"))
    count = len(first)
    partner = torch.arange(2 * count, device=z.device).roll(count)
    return F.cross_entropy(logits, partner)
