"""Regions of interest: matched to objects and sampled, pooled from feature maps, scored, and their masks.

Losses and sampling are those of Faster and Mask R-CNN (Ren et al. 2015; He et al. 2017), on torchvision's matcher, box
coder, RoIAlign and NMS. Label 0 is the background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import ops
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher

from hirl.seeds import mix_seed

SCORE, OVERLAP, DETECTIONS = 0.05, 0.5, 100  # least score, most overlap (NMS), most detections per image
POSITIVE_SHARE = 0.25  # of the regions that a head learns from, at most
CERTAIN = 0.5  # from which a pixel belongs to the mask
Pool: TypeAlias = Callable[[Sequence[Tensor], int], Tensor]  # `pool` with the maps of a batch


@dataclass(frozen=True)
class HeadSizes:
    """How much the heads do; the defaults are those of the published detectors."""

    regions: int = 512  # per image that a head learns from
    proposals: int = 1000  # per image that are looked at when testing; twice as many are drawn from when training
    channels: int = 256  # of a feature pyramid
    hidden: int = 1024  # width of a cascade's box heads

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}, but must be at least 1")


class Target(TypedDict, total=False):
    """The objects of one image; masks where they are learnt."""

    boxes: Tensor  # (n, 4)
    labels: Tensor  # (n,)
    masks: Tensor  # (n, H, W) uint8


class Targets:
    """The targets of a batch, out of sight of mixed precision, which would round boxes in lists and dicts."""

    def __init__(self, each: Sequence[Target]) -> None:
        self.each = each


@dataclass(frozen=True)
class Detections:
    """The detections of one image, by falling score."""

    boxes: Tensor  # (n, 4)
    scores: Tensor  # (n,)
    labels: Tensor  # (n,)
    masks: Tensor | None = None  # (n, M, M): how likely each point of the box is part of the object


@dataclass(frozen=True)
class Regions:
    """Boxes of one image that a head learns from."""

    boxes: Tensor  # (n, 4)
    labels: Tensor  # (n,)
    matched: Tensor  # (n,) the object each is compared with; of no meaning for the background
    is_ground_truth: Tensor  # (n,) bool: it is an object's own box

    @property
    def positive(self) -> Tensor:
        return self.labels > 0


class SeededSampler(BalancedPositiveNegativeSampler):  # type: ignore[misc]
    """torchvision's sampler, drawing for each image from a generator of its own: a function of the image's seed."""

    def __init__(self, size: int, positive: float, stream: int) -> None:
        super().__init__(size, positive)
        self.stream = stream
        self.seeds: Sequence[int] = ()  # one per image of the batch, set before the forward pass

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        chosen: tuple[list[Tensor], list[Tensor]] = ([], [])
        for seed, mine in zip(self.seeds, labels, strict=True):
            generator = torch.Generator().manual_seed(mix_seed(seed, self.stream))
            wanted = int(self.batch_size_per_image * self.positive_fraction)
            for kept, candidates in zip(chosen, (mine >= 1, mine == 0), strict=True):
                places = candidates.nonzero().flatten()
                drawn = torch.randperm(len(places), generator=generator)[:wanted].to(places.device)
                mask = torch.zeros_like(mine, dtype=torch.uint8)
                mask[places[drawn]] = 1
                kept.append(mask)
                wanted = self.batch_size_per_image - len(drawn)  # the background takes what is left
        return chosen


def sample_regions(
    proposals: Sequence[Tensor], targets: Sequence[Target], matcher: Matcher, sampler: SeededSampler
) -> list[Regions]:
    """Proposals and the objects' own boxes, labelled by overlap, of which the sampler takes some."""
    candidates = [_labelled(mine, target, matcher) for mine, target in zip(proposals, targets, strict=True)]
    positive, negative = sampler([one.labels for one in candidates])
    taken = [(one | other).nonzero().flatten() for one, other in zip(positive, negative, strict=True)]
    return [
        Regions(one.boxes[rows], one.labels[rows], one.matched[rows], one.is_ground_truth[rows])
        for one, rows in zip(candidates, taken, strict=True)
    ]


def _labelled(proposals: Tensor, target: Target, matcher: Matcher) -> Regions:
    own = target["boxes"].to(proposals)
    boxes = torch.cat((proposals, own))
    given = torch.arange(len(boxes), device=boxes.device) >= len(proposals)
    if not len(own):
        nothing = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
        return Regions(boxes, nothing, nothing, given)
    matched = matcher(ops.box_iou(own, boxes))
    labels = target["labels"][matched.clamp(min=0)]
    labels = torch.where(matched == Matcher.BELOW_LOW_THRESHOLD, 0, labels)
    labels = torch.where(matched == Matcher.BETWEEN_THRESHOLDS, -1, labels)
    return Regions(boxes, labels, matched.clamp(min=0), given)


def pool(maps: Sequence[Tensor], strides: Sequence[float], boxes: Sequence[Tensor], size: int) -> Tensor:
    """RoIAlign of all boxes, (sum of boxes, C, size, size): each from the map that suits its size (Lin et al. 2017).

    A box of side 14 · stride … 28 · stride is taken from the map of that stride, so 56 … 112 from a stride of 4.
    """
    joined = torch.cat(list(boxes)).float()
    index = torch.cat([torch.full_like(mine[:, :1], place) for place, mine in enumerate(boxes)]).float()
    rows = torch.cat((index, joined), dim=1)
    if len(maps) == 1:
        return _aligned(maps[0], rows, strides[0], size)
    sides = ((joined[:, 2] - joined[:, 0]) * (joined[:, 3] - joined[:, 1])).clamp(min=0).sqrt()
    levels = (sides / (14 * strides[0]) + 1e-6).log2().floor().clamp(0, len(maps) - 1)
    mine = [(levels == level).nonzero().flatten() for level in range(len(maps))]
    pooled = [
        _aligned(one, rows[places], stride, size) for one, places, stride in zip(maps, mine, strides, strict=True)
    ]
    return torch.cat(pooled)[torch.cat(mine).argsort()]


def _aligned(features: Tensor, rows: Tensor, stride: float, size: int) -> Tensor:
    pooled: Tensor = ops.roi_align(features.float(), rows, (size, size), 1 / stride, sampling_ratio=0, aligned=True)
    return pooled


def box_layers(width: int, classes: int) -> tuple[nn.Linear, nn.Linear]:
    """The layers that score the classes and the background, and that refine the box of each region per class."""
    layers = nn.Linear(width, classes + 1), nn.Linear(width, classes * 4)
    for layer, std in zip(layers, (0.01, 0.001), strict=True):
        nn.init.normal_(layer.weight, std=std)
        nn.init.zeros_(layer.bias)
    return layers


def class_loss(logits: Tensor, regions: Sequence[Regions]) -> Tensor:
    """Cross-entropy over all sampled regions; `logits` (R, 1 + classes)."""
    return F.cross_entropy(logits, torch.cat([one.labels for one in regions]))


def box_loss(
    deltas: Tensor, regions: Sequence[Regions], targets: Sequence[Target], coder: BoxCoder, *, beta: float
) -> Tensor:
    """Smooth L1 over the positive regions, over the number of all; `deltas` (R, classes, 4)."""
    labels = torch.cat([one.labels for one in regions])
    positive = (labels > 0).nonzero().flatten()
    wanted = [
        coder.encode_single(target["boxes"].to(one.boxes)[one.matched[one.positive]], one.boxes[one.positive])
        for one, target in zip(regions, targets, strict=True)
    ]
    loss = F.smooth_l1_loss(deltas[positive, labels[positive] - 1], torch.cat(wanted), beta=beta, reduction="sum")
    return loss / max(1, len(labels))


def giou_loss(
    deltas: Tensor, regions: Sequence[Regions], targets: Sequence[Target], coder: BoxCoder, *, weight: float
) -> Tensor:
    """1 − GIoU of decoded boxes and their objects, of positive regions over the number of all.

    deltas (R, classes, 4). Rezatofighi et al., "Generalized Intersection over Union", 2019, arXiv:1902.09630.
    """
    labels = torch.cat([one.labels for one in regions])
    positive = (labels > 0).nonzero().flatten()
    boxes = torch.cat([one.boxes for one in regions])[positive]
    found = coder.decode_single(deltas[positive, labels[positive] - 1], boxes)
    wanted = [
        target["boxes"].to(one.boxes)[one.matched[one.positive]] for one, target in zip(regions, targets, strict=True)
    ]
    loss: Tensor = ops.generalized_box_iou_loss(found, torch.cat(wanted), reduction="sum")
    return weight * loss / max(1, len(labels))


def mask_loss(logits: Tensor, regions: Sequence[Regions], targets: Sequence[Target]) -> Tensor:
    """Cross-entropy per pixel of the masks of positive regions; `logits` (P, classes, M, M)."""
    labels = torch.cat([one.labels[one.positive] for one in regions])
    if not len(labels):
        return logits.sum() * 0
    wanted = []
    for one, target in zip(regions, targets, strict=True):
        boxes, matched = one.boxes[one.positive], one.matched[one.positive]
        rows = torch.cat((matched[:, None].to(boxes), boxes), dim=1)
        shapes = target["masks"][:, None].to(boxes)
        wanted.append(ops.roi_align(shapes, rows, logits.shape[-1], 1.0, sampling_ratio=0, aligned=True)[:, 0] >= 0.5)
    mine = logits[torch.arange(len(labels), device=labels.device), labels - 1]
    return F.binary_cross_entropy_with_logits(mine, torch.cat(wanted).to(mine))


def detections(scores: Tensor, boxes: Tensor, size: tuple[int, int]) -> Detections:
    """The boxes of one image with a sufficient score, without those that NMS drops.

    scores (R, 1 + classes), background first; boxes (R, classes, 4); size: height and width.
    """
    classes = scores.shape[1] - 1
    boxes = ops.clip_boxes_to_image(boxes, size).reshape(-1, 4)
    labels = torch.arange(1, classes + 1, device=scores.device).repeat(len(scores))
    flat = scores[:, 1:].reshape(-1)
    kept = (flat > SCORE).nonzero().flatten()
    kept = kept[ops.remove_small_boxes(boxes[kept], 1e-2)]
    kept = kept[ops.batched_nms(boxes[kept], flat[kept], labels[kept], OVERLAP)[:DETECTIONS]]
    return Detections(boxes[kept], flat[kept], labels[kept])


def with_masks(found: Sequence[Detections], masks: Tensor) -> list[Detections]:
    """Give each detection of all images the mask of its label; `masks` (D, classes, M, M) of probabilities."""
    parts = masks.split([len(one.boxes) for one in found])
    return [
        replace(one, masks=mine[torch.arange(len(mine)), one.labels - 1])
        for one, mine in zip(found, parts, strict=True)
    ]


def paste(mask: Tensor, box: Tensor, height: int, width: int) -> Tensor:
    """(height, width) bool: a mask (M, M) of probabilities in its place in the image, at pixels centred in its box.

    Outside the box the mask is 0, as in detectron2: within half a cell of its border a mask falls towards 0.
    """
    placed = torch.zeros(height, width, dtype=torch.bool)
    x1, y1, x2, y2 = box.tolist()
    left, top = max(0, math.ceil(x1 - 0.5)), max(0, math.ceil(y1 - 0.5))
    right, bottom = min(width, math.floor(x2 + 0.5)), min(height, math.floor(y2 + 0.5))
    if right <= left or bottom <= top or x2 <= x1 or y2 <= y1:
        return placed
    columns = (torch.arange(left, right) + 0.5 - x1) / (x2 - x1) * 2 - 1  # pixel centres in the box's own [-1, 1]
    rows = (torch.arange(top, bottom) + 0.5 - y1) / (y2 - y1) * 2 - 1
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)
    values = F.grid_sample(mask[None, None].float(), grid[None], padding_mode="zeros", align_corners=False)[0, 0]
    placed[top:bottom, left:right] = values >= CERTAIN
    return placed
