"""Cascade Mask R-CNN (Cai, Vasconcelos, "Cascade R-CNN: High Quality Object Detection and Instance Segmentation", 2019,
arXiv:1906.09756): three heads in a row, each on the boxes of the one before and with a stricter idea of a hit.

Each stage has a box head of two layers, refines boxes whatever their class, and has a mask head of its own; in testing
the class scores and the masks of the three are averaged. Losses of stages count 1, ½ and ¼.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import clip_boxes_to_image

from hirl.evals.detection import regions
from hirl.evals.detection.proposals import Proposals
from hirl.evals.detection.pyramid import SCALES, PyramidBody
from hirl.evals.detection.regions import Found, HeadSizes, Regions, SeededSampler, Target

OVERLAPS = (0.5, 0.6, 0.7)  # from which a region counts as a hit
WEIGHTS = (1.0, 0.5, 0.25)  # of the losses
PRECISION = (10.0, 20.0, 30.0)  # of the boxes' centres; half of it for their sides
BOX_SIZE, MASK_SIZE = 7, 14  # pooled
ANCHOR = 8  # strides an anchor is wide
BETA = 1.0  # of the loss of boxes
STREAM = 10  # of random numbers, for the first stage


class Stage(nn.Module):
    """The heads of one stage."""

    def __init__(self, classes: int, sizes: HeadSizes, *, segment: bool) -> None:
        super().__init__()
        channels, hidden = sizes.channels, sizes.hidden
        self.head = TwoMLPHead(channels * BOX_SIZE**2, hidden)
        for layer in (self.head.fc6, self.head.fc7):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.classifier, self.refiner = regions.box_layers(hidden, classes, boxes=1)
        self.masks = None
        if segment:
            self.masks = nn.Sequential(
                MaskRCNNHeads(channels, (channels,) * 4, 1), MaskRCNNPredictor(channels, channels, classes)
            )

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (R, 1 + classes) and deltas (R, 1, 4)."""
        features = self.head(pooled)
        return self.classifier(features).float(), self.refiner(features).float()[:, None]


class CascadeHeads(nn.Module):
    """Three stages on the four finest maps."""

    def __init__(self, classes: int, sizes: HeadSizes, *, segment: bool) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(classes, sizes, segment=segment) for _ in OVERLAPS)
        self.matchers = [Matcher(overlap, overlap) for overlap in OVERLAPS]
        self.samplers = [SeededSampler(sizes.regions, 0.25, STREAM + number) for number in range(len(OVERLAPS))]
        self.coders = [regions.coder((centre, centre, centre / 2, centre / 2)) for centre in PRECISION]

    def forward(
        self,
        maps: Sequence[Tensor],
        strides: Sequence[float],
        proposals: Sequence[Tensor],
        sizes: Sequence[tuple[int, int]],
        targets: Sequence[Target] | None,
    ) -> tuple[list[Found], dict[str, Tensor]]:
        maps, strides = maps[: len(SCALES)], strides[: len(SCALES)]
        if targets is None:
            return self._found(maps, strides, proposals, sizes), {}
        losses: dict[str, Tensor] = {}
        boxes = list(proposals)
        for number, stage in enumerate(self.stages):
            assert isinstance(stage, Stage)
            coder = self.coders[number]
            sampled = regions.sample_regions(boxes, targets, self.matchers[number], self.samplers[number])
            logits, deltas = stage(regions.pool(maps, strides, [one.boxes for one in sampled], BOX_SIZE))
            weight = WEIGHTS[number]
            losses[f"class{number}"] = weight * regions.class_loss(logits, sampled)
            losses[f"box{number}"] = weight * regions.box_loss(deltas, sampled, targets, coder, beta=BETA)
            if stage.masks is not None:
                positive = [one.boxes[one.positive] for one in sampled]
                shapes = stage.masks(regions.pool(maps, strides, positive, MASK_SIZE)).float()
                losses[f"mask{number}"] = weight * regions.mask_loss(shapes, sampled, targets)
            refined = self._refined(number, deltas, [one.boxes for one in sampled], sizes)
            boxes = [_without_given(mine, one) for mine, one in zip(refined, sampled, strict=True)]
        return [], losses

    @torch.no_grad()
    def _refined(
        self, number: int, deltas: Tensor, boxes: Sequence[Tensor], sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """What a stage makes of its boxes; the next one learns from them as they are."""
        decoded = self.coders[number].decode_single(deltas[:, 0], torch.cat(list(boxes)))
        parts = decoded.split([len(one) for one in boxes])
        return [clip_boxes_to_image(part, size) for part, size in zip(parts, sizes, strict=True)]

    def _found(
        self,
        maps: Sequence[Tensor],
        strides: Sequence[float],
        proposals: Sequence[Tensor],
        sizes: Sequence[tuple[int, int]],
    ) -> list[Found]:
        boxes = list(proposals)
        scores = []
        for number, stage in enumerate(self.stages):
            logits, deltas = stage(regions.pool(maps, strides, boxes, BOX_SIZE))
            scores.append(logits.softmax(1))
            boxes = self._refined(number, deltas, boxes, sizes)
        counts = [len(one) for one in boxes]
        parts = zip(torch.stack(scores).mean(0).split(counts), boxes, sizes, strict=True)
        found = [regions.detections(mine, ends[:, None], size) for mine, ends, size in parts]
        return self._with_masks(maps, strides, found)

    def _with_masks(self, maps: Sequence[Tensor], strides: Sequence[float], found: list[Found]) -> list[Found]:
        heads = [stage.masks for stage in self.stages if isinstance(stage, Stage) and stage.masks is not None]
        if not heads:
            return found
        pooled = regions.pool(maps, strides, [one.boxes for one in found], MASK_SIZE)
        shapes = torch.stack([head(pooled).float().sigmoid() for head in heads]).mean(0)
        return regions.with_masks(found, shapes)


def _without_given(refined: Tensor, sampled: Regions) -> Tensor:
    """The objects' own boxes join every stage anew, so they are not handed on."""
    return refined[~sampled.given]


def cascade_parts(
    vit: nn.Module, classes: int, sizes: HeadSizes, *, segment: bool
) -> tuple[nn.Module, Proposals, nn.Module]:
    """Body, proposals and heads on a plain vision transformer."""
    body = PyramidBody(vit, sizes.channels)
    strides = [body.patch / scale for scale in (*SCALES, SCALES[-1] / 2)]
    kept = {"training": (2 * sizes.proposals,) * 2, "testing": (sizes.proposals,) * 2}
    anchors = [[round(ANCHOR * stride)] for stride in strides]
    rpn = Proposals(sizes.channels, anchors, kept=kept, beta=1 / 9)
    return body, rpn, CascadeHeads(classes, sizes, segment=segment)
