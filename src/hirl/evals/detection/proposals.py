"""The region proposal network: torchvision's, with draws that belong to the images and losses in full precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

from hirl.evals.detection.regions import SeededSampler

RATIOS = (0.5, 1.0, 2.0)  # height over width
STREAM = 0  # of random numbers


class FullPrecisionHead(RPNHead):  # type: ignore[misc]
    """Under mixed precision only the convolutions are in half: coordinates of large images need all their digits."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        logits, deltas = super().forward(maps)
        return [one.float() for one in logits], [one.float() for one in deltas]


class Proposals(RegionProposalNetwork):  # type: ignore[misc]
    """256 anchors per image, half of them positive (IoU above 0.7; below 0.3 is background); NMS at 0.7.

    sizes: per feature map those of its anchors
    kept: how many proposals are taken before NMS (per map) and after it, in training and in testing
    beta: where the loss of boxes turns from squares to absolute values; 0 for absolute values alone
    """

    def __init__(
        self,
        channels: int,
        sizes: Sequence[Sequence[int]],
        *,
        kept: dict[str, tuple[int, int]],
        beta: float,
    ) -> None:
        generator = AnchorGenerator(tuple(map(tuple, sizes)), (RATIOS,) * len(sizes))
        head = FullPrecisionHead(channels, generator.num_anchors_per_location()[0])
        before, after = ({part: counts[place] for part, counts in kept.items()} for place in (0, 1))
        super().__init__(generator, head, 0.7, 0.3, 256, 0.5, before, after, 0.7)
        self.fg_bg_sampler = SeededSampler(256, 0.5, STREAM)
        self.beta = beta

    def compute_loss(
        self, objectness: Tensor, deltas: Tensor, labels: list[Tensor], wanted: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        positive, negative = (torch.cat(chosen).nonzero().flatten() for chosen in self.fg_bg_sampler(labels))
        sampled = torch.cat((positive, negative))
        boxes = F.smooth_l1_loss(deltas[positive], torch.cat(wanted)[positive], beta=self.beta, reduction="sum")
        known = F.binary_cross_entropy_with_logits(objectness.flatten()[sampled], torch.cat(labels)[sampled])
        return known, boxes / max(1, len(sampled))
