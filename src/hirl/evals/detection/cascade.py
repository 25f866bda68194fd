"""Cascade Mask R-CNN (Cai, Vasconcelos, "Cascade R-CNN: High Quality Object Detection and Instance Segmentation", 2019,
arXiv:1906.09756): three heads in a row, each on the boxes of the one before and with a higher overlap for positives.

As in iBOT's published runs (Zhou et al. 2022, arXiv:2111.07832; its files `vit_*_giou_4conv1f_coco_3x.py` for
mmdetection): a box head of four convolutions and one layer per stage, boxes refined per class and learnt by GIoU, and a
mask head of its own. In testing the logits of classes and the masks of the three stages are averaged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import clip_boxes_to_image

from hirl.evals.detection import regions
from hirl.evals.detection.proposals import Proposals
from hirl.evals.detection.pyramid import SCALES, PyramidBody
from hirl.evals.detection.regions import Detections, HeadSizes, Pool, SeededSampler, Target
from hirl.seeds import RegionStream

OVERLAPS = (0.5, 0.6, 0.7)  # from which a region is positive
WEIGHTS = (1.0, 0.5, 0.25)  # of the losses
DEVIATIONS = ((0.1, 0.1, 0.2, 0.2), (0.05, 0.05, 0.1, 0.1), (0.033, 0.033, 0.067, 0.067))  # of boxes: x, y, sides
CONVOLUTIONS = 4  # of a box head, and of a mask head
BOX_SIZE, MASK_SIZE = 7, 14  # pooled
GIOU_WEIGHT = 10.0  # of the loss of boxes
ANCHOR = 8  # strides an anchor is wide
MIN_OVERLAP = 0.3  # from which an object's best anchor is learnt
BETA = 1 / 9  # of the proposals' loss of boxes


class BoxHead(nn.Module):
    """Convolutions with batch norm, then one layer."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*(self._block(channels) for _ in range(CONVOLUTIONS)))
        self.layer = nn.Linear(channels * BOX_SIZE**2, hidden)
        nn.init.xavier_uniform_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    @staticmethod
    def _block(channels: int) -> nn.Sequential:
        convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        parts = OrderedDict(convolution=convolution, norm=nn.BatchNorm2d(channels), relu=nn.ReLU())
        return nn.Sequential(parts)

    def forward(self, pooled: Tensor) -> Tensor:
        """(R, channels, 7, 7) → (R, hidden)"""
        features: Tensor = self.layer(self.convolutions(pooled).flatten(1)).relu()
        return features


class Stage(nn.Module):
    """The heads of one stage."""

    def __init__(self, classes: int, sizes: HeadSizes, *, segment: bool) -> None:
        super().__init__()
        channels, hidden = sizes.channels, sizes.hidden
        self.head = BoxHead(channels, hidden)
        self.classifier, self.refiner = regions.box_layers(hidden, classes)
        self.masks = None
        if segment:
            self.masks = nn.Sequential(
                MaskRCNNHeads(channels, (channels,) * CONVOLUTIONS, 1), MaskRCNNPredictor(channels, channels, classes)
            )

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (R, 1 + classes) and deltas (R, classes, 4)."""
        features = self.head(pooled)
        return self.classifier(features).float(), self.refiner(features).float().unflatten(1, (-1, 4))


class CascadeHeads(nn.Module):
    """Three stages on the four finest maps."""

    def __init__(self, classes: int, sizes: HeadSizes, *, segment: bool) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(classes, sizes, segment=segment) for _ in OVERLAPS)
        self.matchers = [Matcher(overlap, overlap) for overlap in OVERLAPS]
        self.samplers = [
            SeededSampler(sizes.regions, regions.POSITIVE_SHARE, RegionStream.CASCADE + number)
            for number in range(len(OVERLAPS))
        ]
        self.coders = [BoxCoder((1 / x, 1 / y, 1 / w, 1 / h)) for x, y, w, h in DEVIATIONS]

    def forward(
        self,
        maps: Sequence[Tensor],
        strides: Sequence[float],
        proposals: Sequence[Tensor],
        sizes: Sequence[tuple[int, int]],
        targets: Sequence[Target] | None,
    ) -> tuple[list[Detections], dict[str, Tensor]]:
        pool = partial(regions.pool, maps[: len(SCALES)], strides[: len(SCALES)])
        if targets is None:
            return self._found(pool, proposals, sizes), {}
        losses: dict[str, Tensor] = {}
        boxes = list(proposals)
        for number, stage in enumerate(self.stages):
            assert isinstance(stage, Stage)
            coder = self.coders[number]
            sampled = regions.sample_regions(boxes, targets, self.matchers[number], self.samplers[number])
            logits, deltas = stage(pool([one.boxes for one in sampled], BOX_SIZE))
            weight = WEIGHTS[number]
            losses[f"class{number}"] = weight * regions.class_loss(logits, sampled)
            losses[f"box{number}"] = weight * regions.giou_loss(deltas, sampled, targets, coder, weight=GIOU_WEIGHT)
            if stage.masks is not None:
                positive = [one.boxes[one.positive] for one in sampled]
                shapes = stage.masks(pool(positive, MASK_SIZE)).float()
                losses[f"mask{number}"] = weight * regions.mask_loss(shapes, sampled, targets)
            labels = torch.cat([one.labels for one in sampled])
            labels = torch.where(labels > 0, labels, _most_likely_class(logits))
            refined = self._refined(number, deltas, labels, [one.boxes for one in sampled], sizes)
            # Without the objects' own boxes, which every stage adds itself.
            boxes = [mine[~one.is_ground_truth] for mine, one in zip(refined, sampled, strict=True)]
        return [], losses

    @torch.no_grad()
    def _refined(
        self, number: int, deltas: Tensor, labels: Tensor, boxes: Sequence[Tensor], sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """The boxes refined by a stage, with the deltas of their labels."""
        mine = deltas[torch.arange(len(labels), device=labels.device), labels - 1]
        decoded = self.coders[number].decode_single(mine, torch.cat(list(boxes)))
        parts = decoded.split([len(one) for one in boxes])
        return [clip_boxes_to_image(part, size) for part, size in zip(parts, sizes, strict=True)]

    def _found(self, pool: Pool, proposals: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> list[Detections]:
        boxes = list(proposals)
        logits, deltas = self.stages[0](pool(boxes, BOX_SIZE))
        total = logits
        for number, stage in enumerate(self.stages[1:]):
            boxes = self._refined(number, deltas, _most_likely_class(logits), boxes, sizes)
            logits, deltas = stage(pool(boxes, BOX_SIZE))
            total = total + logits
        scores = (total / len(self.stages)).softmax(1)
        decoded = self.coders[-1].decode_single(deltas.flatten(1), torch.cat(boxes)).unflatten(1, (-1, 4))
        counts = [len(one) for one in boxes]
        parts = zip(scores.split(counts), decoded.split(counts), sizes, strict=True)
        found = [regions.detections(*part) for part in parts]
        heads = [stage.masks for stage in self.stages if isinstance(stage, Stage) and stage.masks is not None]
        if not heads:
            return found
        pooled = pool([one.boxes for one in found], MASK_SIZE)
        shapes = torch.stack([head(pooled).float().sigmoid() for head in heads]).mean(0)
        return regions.with_masks(found, shapes)


def _most_likely_class(logits: Tensor) -> Tensor:
    """The most likely class other than background."""
    return logits[:, 1:].argmax(1) + 1


def cascade_parts(
    vit: nn.Module, classes: int, sizes: HeadSizes, *, segment: bool
) -> tuple[nn.Module, Proposals, nn.Module]:
    """Body, proposals and heads on a plain vision transformer."""
    body = PyramidBody(vit, sizes.channels)
    counts = {"training": (2 * sizes.proposals,) * 2, "testing": (sizes.proposals,) * 2}
    anchors = [[ANCHOR * stride] for stride in body.strides]
    rpn = Proposals(
        sizes.channels, anchors, body.strides, proposal_counts=counts, beta=BETA, inside=True, min_overlap=MIN_OVERLAP
    )
    return body, rpn, CascadeHeads(classes, sizes, segment=segment)
