"""The region proposal network: torchvision's, with anchors at fixed strides and draws that belong to the images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import box_iou

from hirl.evals.detection.regions import SeededSampler
from hirl.seeds import RegionStream

RATIOS = (0.5, 1.0, 2.0)  # height over width
POSITIVE, NEGATIVE = 0.7, 0.3  # IoU from which an anchor is an object, and below which it is background
ANCHORS, POSITIVE_SHARE = 256, 0.5  # per image that are learnt from, and how many of them may be positive
OVERLAP = 0.7  # of proposals that NMS allows


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """Anchors around the points (stride · column, stride · row) of every map, their sides not rounded.

    torchvision divides the batch's sides by the map's and rounds down: on 800 pixels, whose 13 columns at a stride of
    64 end beyond the border, it would place the last of them 36 pixels too early.
    """

    def __init__(self, sizes: Sequence[Sequence[float]], strides: Sequence[float]) -> None:
        super().__init__(tuple(map(tuple, sizes)), (RATIOS,) * len(sizes))
        self.strides = tuple(strides)

    def generate_anchors(
        self,
        scales: Any,
        aspect_ratios: Any,
        dtype: torch.dtype = torch.float32,
        device: torch.device = torch.device("cpu"),  # noqa: B008 (as the parent has it)
    ) -> Tensor:
        """(ratios · sizes, 4), centred at 0."""
        sides = torch.tensor(scales, dtype=dtype, device=device)
        roots = torch.tensor(aspect_ratios, dtype=dtype, device=device).sqrt()[:, None]
        halves = torch.stack((sides / roots, sides * roots), dim=-1).flatten(0, 1) / 2  # width, height
        return torch.cat((-halves, halves), dim=1)

    def forward(self, images: ImageList, maps: list[Tensor]) -> list[Tensor]:
        """The anchors of all maps, (anchors, 4), the same for every image."""
        self.set_cell_anchors(maps[0].dtype, maps[0].device)
        grids = [list(one.shape[-2:]) for one in maps]
        anchors = torch.cat(self.grid_anchors(grids, [[stride, stride] for stride in self.strides]))
        return [anchors] * len(images.image_sizes)


class AnchorMatcher(Matcher):  # type: ignore[misc]
    """An object's best anchor is positive even below the threshold for others, if they overlap by `min_overlap`."""

    def __init__(self, min_overlap: float) -> None:
        super().__init__(POSITIVE, NEGATIVE, allow_low_quality_matches=True)
        self.min_overlap = min_overlap

    def set_low_quality_matches_(self, matches: Tensor, all_matches: Tensor, overlaps: Tensor) -> None:
        """overlaps: (objects, anchors)"""
        super().set_low_quality_matches_(matches, all_matches, overlaps[overlaps.amax(1) >= self.min_overlap])


class FullPrecisionHead(RPNHead):  # type: ignore[misc]
    """Under mixed precision only the convolutions are in half: coordinates of large images need all their digits."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        logits, deltas = super().forward(maps)
        return [one.float() for one in logits], [one.float() for one in deltas]


class Proposals(RegionProposalNetwork):  # type: ignore[misc]
    """Region proposals from the anchors of all maps; NMS is within a map.

    sizes: per feature map those of its anchors
    strides: pixels between neighbours of each map
    proposal_counts: how many proposals are taken before NMS (per map) and after it, in training and in testing
    beta: where the loss of boxes turns from squares to absolute values; 0 for absolute values alone
    inside: learn only from anchors that do not cross the border of their image
    min_overlap: overlap from which an object's best anchor is learnt, whatever the others overlap
    """

    def __init__(
        self,
        channels: int,
        sizes: Sequence[Sequence[float]],
        strides: Sequence[float],
        *,
        proposal_counts: dict[str, tuple[int, int]],
        beta: float,
        inside: bool,
        min_overlap: float,
    ) -> None:
        generator = Anchors(sizes, strides)
        head = FullPrecisionHead(channels, generator.num_anchors_per_location()[0])
        before, after = ({part: counts[place] for part, counts in proposal_counts.items()} for place in (0, 1))
        super().__init__(generator, head, POSITIVE, NEGATIVE, ANCHORS, POSITIVE_SHARE, before, after, OVERLAP)
        self.proposal_matcher = AnchorMatcher(min_overlap)
        self.fg_bg_sampler = SeededSampler(ANCHORS, POSITIVE_SHARE, RegionStream.PROPOSALS)
        self.beta = beta
        self.inside = inside

    def forward(
        self, images: ImageList, features: dict[str, Tensor], targets: Sequence[Any] | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        if targets is not None:
            targets = [{**one, "size": size} for one, size in zip(targets, images.image_sizes, strict=True)]
        found: tuple[list[Tensor], dict[str, Tensor]] = super().forward(images, features, targets)
        return found

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: Sequence[Any]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Per image the anchors' labels (1 object, 0 background, -1 neither) and the boxes they are compared with."""
        labels, wanted = [], []
        for mine, target in zip(anchors, targets, strict=True):
            labels.append(torch.full_like(mine[:, 0], -1))
            wanted.append(torch.zeros_like(mine))
            places = _inside(mine, target["size"]) if self.inside else torch.arange(len(mine), device=mine.device)
            boxes = target["boxes"].to(mine)
            if not len(boxes) or not len(places):
                labels[-1][places] = 0
                continue
            matched = self.proposal_matcher(box_iou(boxes, mine[places]))
            known = torch.where(matched == Matcher.BETWEEN_THRESHOLDS, -1, (matched >= 0).int())
            labels[-1][places] = known.to(mine)
            wanted[-1][places] = boxes[matched.clamp(min=0)]
        return labels, wanted

    def compute_loss(
        self, objectness: Tensor, deltas: Tensor, labels: list[Tensor], wanted: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        positive, negative = (torch.cat(chosen).nonzero().flatten() for chosen in self.fg_bg_sampler(labels))
        sampled = torch.cat((positive, negative))
        boxes = F.smooth_l1_loss(deltas[positive], torch.cat(wanted)[positive], beta=self.beta, reduction="sum")
        known = F.binary_cross_entropy_with_logits(
            objectness.flatten()[sampled], torch.cat(labels)[sampled], reduction="sum"
        )
        return known / max(1, len(sampled)), boxes / max(1, len(sampled))  # a small image may have no anchor inside


def _inside(anchors: Tensor, size: tuple[int, int]) -> Tensor:
    """The places of the anchors that do not cross the border of an image of this height and width."""
    height, width = size
    after = (anchors[:, :2] >= 0).all(1)
    return (after & (anchors[:, 2] < width) & (anchors[:, 3] < height)).nonzero().flatten()
