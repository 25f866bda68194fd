"""Faster and Mask R-CNN C4 (Ren et al. 2015, He et al. 2017) on ResNets, as MoCo's configuration has them.

He, Fan, Wu, Xie, Girshick, "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, arXiv:1911.05722:
conv1 to res4 make one map of stride 16; RoIAlign takes 14 × 14 from it; res5 and one more batch norm are the head that
boxes and masks share; every batch norm is trained, with statistics over all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor

from hirl.evals.detection import regions
from hirl.evals.detection.proposals import Proposals
from hirl.evals.detection.regions import Detections, HeadSizes, Pool, SeededSampler, Target
from hirl.seeds import RegionStream

ANCHORS = ((32, 64, 128, 256, 512),)
STRIDE = 16  # of res4
BEFORE_NMS = 6  # times as many proposals as are kept
OVERLAP = 0.5  # from which a region is positive
PRECISION = (10.0, 10.0, 5.0, 5.0)  # of the boxes' centres and sides
BETA = 0.0  # of the losses of boxes: absolute differences
POOLED = 14


class C4Body(nn.Module):
    """conv1 to res4."""

    strides = (STRIDE,)

    def __init__(self, resnet: nn.Module) -> None:
        super().__init__()
        net: Any = resnet
        self.stem = nn.Sequential(net.conv1, net.bn1, net.act1 if hasattr(net, "act1") else net.relu, net.maxpool)
        self.res2, self.res3, self.res4 = net.layer1, net.layer2, net.layer3

    def forward(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:  # noqa: ARG002
        maps: Tensor = self.res4(self.res3(self.res2(self.stem(images))))
        return [maps.float()]


class C4Heads(nn.Module):
    """res5 on pooled regions, then class, box and mask; boxes are refined per class."""

    def __init__(self, resnet: nn.Module, width: int, classes: int, sizes: HeadSizes, *, segment: bool) -> None:
        super().__init__()
        net: Any = resnet
        self.res5 = net.layer4
        self.norm = nn.BatchNorm2d(width)
        self.classifier, self.refiner = regions.box_layers(width, classes)
        self.masks = MaskRCNNPredictor(width, 256, classes) if segment else None
        self.matcher = Matcher(OVERLAP, OVERLAP)
        self.samplers = [SeededSampler(sizes.regions, regions.POSITIVE_SHARE, RegionStream.C4)]
        self.coder = BoxCoder(PRECISION)

    def forward(
        self,
        maps: Sequence[Tensor],
        strides: Sequence[float],
        proposals: Sequence[Tensor],
        sizes: Sequence[tuple[int, int]],
        targets: Sequence[Target] | None,
    ) -> tuple[list[Detections], dict[str, Tensor]]:
        pool = partial(regions.pool, maps, strides)
        if targets is None:
            return self._found(pool, proposals, sizes), {}
        sampled = regions.sample_regions(proposals, targets, self.matcher, self.samplers[0])
        features = self._features(pool, [one.boxes for one in sampled])
        logits, deltas = self._predicted(features)
        losses = {
            "class": regions.class_loss(logits, sampled),
            "box": regions.box_loss(deltas, sampled, targets, self.coder, beta=BETA),
        }
        if self.masks is not None:
            positive = torch.cat([one.positive for one in sampled])
            losses["mask"] = regions.mask_loss(self.masks(features[positive]).float(), sampled, targets)
        return [], losses

    def _features(self, pool: Pool, boxes: Sequence[Tensor]) -> Tensor:
        """(R, width, 7, 7)"""
        features: Tensor = self.norm(self.res5(pool(boxes, POOLED)))
        return features

    def _predicted(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (R, 1 + classes) and deltas (R, classes, 4)."""
        pooled = features.mean((2, 3))
        return self.classifier(pooled).float(), self.refiner(pooled).float().unflatten(1, (-1, 4))

    def _found(self, pool: Pool, proposals: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> list[Detections]:
        logits, deltas = self._predicted(self._features(pool, proposals))
        boxes = self.coder.decode_single(deltas.flatten(1), torch.cat(list(proposals))).unflatten(1, (-1, 4))
        counts = [len(one) for one in proposals]
        parts = zip(logits.softmax(1).split(counts), boxes.split(counts), sizes, strict=True)
        found = [regions.detections(*part) for part in parts]
        if self.masks is None:
            return found
        shapes = self.masks(self._features(pool, [one.boxes for one in found])).float().sigmoid()
        return regions.with_masks(found, shapes)


def c4_parts(
    resnet: nn.Module, classes: int, sizes: HeadSizes, *, segment: bool
) -> tuple[nn.Module, Proposals, nn.Module]:
    """Body, proposals and heads on a ResNet of timm or torchvision, whose layers they take over."""
    middle, width = (_channels(resnet, layer) for layer in ("layer3", "layer4"))
    body = C4Body(resnet)
    if any(layer.dilation != (1, 1) for layer in body.modules() if isinstance(layer, nn.Conv2d)):
        raise ValueError(
            f"a detector needs a ResNet whose third stage has a stride of {STRIDE}, but this one is dilated"
        )
    after = {"training": 2 * sizes.proposals, "testing": sizes.proposals}
    counts = {part: (BEFORE_NMS * count, count) for part, count in after.items()}
    # As in detectron2: anchors may cross the border, and an object's best anchor is learnt however little they overlap.
    rpn = Proposals(middle, ANCHORS, body.strides, proposal_counts=counts, beta=BETA, inside=False, min_overlap=0.0)
    return body, rpn, C4Heads(resnet, width, classes, sizes, segment=segment)


def is_resnet(network: nn.Module) -> bool:
    """Whether it has a ResNet's stem and four stages."""
    stem = hasattr(network, "act1") or hasattr(network, "relu")
    return stem and all(hasattr(network, part) for part in ("conv1", "bn1", "maxpool", "layer1", "layer4"))


def _channels(resnet: nn.Module, stage: str) -> int:
    """The number of channels a stage gives: those of the last batch norm of its last block."""
    block = list(resnet.get_submodule(stage).children())[-1]
    norms = [layer for layer in block.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    return int(norms[-1].num_features)
