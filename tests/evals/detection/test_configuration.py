"""The tables of docs/detection.md that compare detectors with their sources: column "hirl" has the code's values."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.detection.image_list import ImageList

from hirl.encoders.backbones import make_backbone
from hirl.evals import Detection
from hirl.evals.detection import c4 as c4_module
from hirl.evals.detection import cascade, detector_training, regions
from hirl.evals.detection.c4 import C4Heads
from hirl.evals.detection.cascade import CascadeHeads, Stage
from hirl.evals.detection.detector import Detector, make_detector
from hirl.evals.detection.pyramid import PyramidBody
from hirl.evals.detection.schedule import WARMUP_START, Schedule, make_optimiser, published
from hirl.methods import IBOT, MoCoV2, MoCoV3
from hirl.methods.facts import Facts

DOCS = Path(__file__).parents[3] / "docs" / "detection.md"
COCO = 118_287  # images
TITLES = {"c4": "### C4, value by value", "cascade": "### Cascade, value by value"}
BACKBONES = {"c4": "resnet50", "cascade": "vit_base_patch16_224"}


@cache
def full_size(backbone: str) -> Detector:
    with torch.device("meta"):
        return make_detector(make_backbone(backbone), 80, segment=True)


def numbers(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)


def smooth(beta: float) -> str:
    return "L1" if beta == 0 else f"smooth L1, β = 1/{1 / beta:g}"


def anchors(detector: Detector) -> dict[str, str]:
    """All that decides on proposals."""
    rpn: Any = detector.proposals
    generator = rpn.anchor_generator
    assert {len(sizes) for sizes in generator.sizes} == {len(generator.sizes[0])}
    side = 800
    maps = [torch.zeros(1, 1, -(-side // int(stride)), 1) for stride in generator.strides]
    (found,) = generator(ImageList(torch.zeros(1, 3, side, 32), [(side, 32)]), maps)
    rows = [
        mine.view(one.shape[2], -1, 4)
        for mine, one in zip(
            found.split([one.shape[2] * 3 * len(generator.sizes[0]) for one in maps]), maps, strict=True
        )
    ]
    steps = [float((mine[-1, 0, 1] + mine[-1, 0, 3]) / 2 / (len(mine) - 1)) for mine in rows]
    before, after = ([*map(f, ("training", "testing"))] for f in (rpn._pre_nms_top_n.get, rpn._post_nms_top_n.get))
    matcher, sampler = rpn.proposal_matcher, rpn.fg_bg_sampler
    return {
        "strides of anchors": f"{numbers(steps)} px, the first at 0",
        "sizes of anchors": f"{numbers(size for sizes in generator.sizes for size in sizes)} px",
        "ratios of anchors": numbers(generator.aspect_ratios[0]),
        "anchors across the border": "ignored in training" if rpn.inside else "learnt from",
        "overlap of anchors": f"from {matcher.high_threshold:g} an object, below {matcher.low_threshold:g} background",
        "best anchor of an object": f"learnt from an overlap of {matcher.min_overlap:g} on",
        "anchors per image": f"{sampler.batch_size_per_image}, at most {sampler.positive_fraction:g} of them objects",
        "loss of proposals": f"cross-entropy; boxes {smooth(rpn.beta)}",
        "proposals before NMS": f"{before[0]} in training, {before[1]} in testing",
        "proposals after NMS": f"{after[0]} in training, {after[1]} in testing",
        "NMS of proposals": f"{rpn.nms_thresh:g}",
    }


def samplers(detector: Detector) -> str:
    _, *found = detector.samplers
    (size,), (share,) = ({one.batch_size_per_image for one in found}, {one.positive_fraction for one in found})
    return f"{size}, at most {share:g} of them objects"


def detections() -> dict[str, str]:
    mask = regions.paste(torch.ones(1, 1), torch.tensor([0.0, 0.0, 100.0, 100.0]), 100, 100)
    around = "zeros" if not mask[0, 0] else "its borders"
    return {
        "detections": f"score above {regions.SCORE:g}, NMS at {regions.OVERLAP:g}, at most {regions.DETECTIONS}",
        "masks": f"from {regions.CERTAIN:g} on, with {around} around the box",
    }


def learning(detector: Detector, schedule: Schedule) -> dict[str, str]:
    """How it is trained."""
    groups = make_optimiser(detector, schedule).param_groups
    group = groups[0]
    names = {id(parameter): name for name, parameter in detector.named_parameters()}
    spared = {names[id(one)] for group in groups if group["weight_decay"] == 0 for one in group["params"]}
    decayed = set(names.values()) - spared
    norms = {
        f"{name}.{part}"
        for name, module in detector.named_modules()
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm)
        for part, _ in module.named_parameters()
    }
    kinds = {"norms": norms, "positions": {name for name in names.values() if name.endswith("pos_embed")}}
    kinds["biases"] = {name for name in names.values() if name.endswith("bias")} - norms
    without = [kind for kind, members in kinds.items() if members and members <= spared]
    assert all(members <= spared or members <= decayed for members in kinds.values())
    name = {"sgd": "SGD", "adamw": "AdamW"}[schedule.optimiser]
    own = f"momentum {group['momentum']:g}" if name == "SGD" else f"betas {numbers(group['betas'])}"
    sides = schedule.short_sides
    (step,) = {after - before for before, after in pairwise(sides)}
    return {
        "optimiser": f"{name}, {own}, weight decay {schedule.weight_decay:g}, none on {', '.join(without)}",
        "rate": f"{schedule.lr:g} at a batch of {schedule.batch_size}",
        "warm-up": f"{schedule.warmup} steps, linear from {WARMUP_START:g}",
        "shorter side": f"{sides[0]} to {sides[-1]} in steps of {step}; {sides[-1]} in testing",
        "longer side": f"at most {schedule.long_side}",
        "crops": "half of the images" if schedule.crops else "none",
        "precision": Detection().precision,
        "images without objects": "kept" if Detection().keep_empty else "removed from training",
    }


def c4() -> dict[str, str]:
    detector = full_size(BACKBONES["c4"])
    heads = detector.heads
    assert isinstance(heads, C4Heads)
    schedule = published(detector, MoCoV2.facts).for_images(COCO)
    epoch = COCO / 16
    pooled = heads.res5.get_submodule("0.conv1")
    assert isinstance(pooled, nn.Conv2d)
    norms = {type(layer).__name__ for layer in detector.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    assert norms == {"BatchNorm2d"}  # which processes synchronise
    assert heads.masks is not None
    masks: Any = heads.masks
    channels, kinds = masks.conv5_mask.out_channels, masks.mask_fcn_logits.out_channels
    return {
        **anchors(detector),
        "RoIAlign": f"{side(c4_module.POOLED)}, from a map of stride {c4_module.STRIDE}",
        "head": f"res5 and a batch norm of {heads.norm.num_features}",
        "regions per image": samplers(detector),
        "overlap of a hit": f"{heads.matcher.high_threshold:g}",
        "weights of box coder": numbers(heads.coder.weights),
        "boxes": f"{heads.refiner.out_features // 4} per region (per class); {smooth(c4_module.BETA)}",
        "mask head": f"{channels} channels, {kinds} masks (per class)",
        "batch norm": f"trained, over all processes; in the end the mean of {detector_training.PRECISE_STEPS} batches",
        **detections(),
        **learning(detector, published(detector, MoCoV2.facts)),
        "length": f"{schedule.steps} steps of {schedule.batch_size} images",
        "falls": f"× 0.1 at {numbers(round(fall * epoch) for fall in schedule.milestones).replace('e+05', '')}",
    }


def side(size: int) -> str:
    return f"{size} × {size}"


def per_stage(values: Any) -> str:
    return "; ".join(values)


def cascade_values() -> dict[str, str]:
    detector = full_size(BACKBONES["cascade"])
    body, heads = detector.body, detector.heads
    assert isinstance(body, PyramidBody)
    assert isinstance(heads, CascadeHeads)
    schedule, paper = published(detector, IBOT.facts), published(detector, IBOT.facts, "paper")
    small = published(full_size("vit_small_patch16_224"), IBOT.facts)
    stage = heads.stages[0]
    assert isinstance(stage, Stage)
    assert stage.masks is not None
    kinds = ", ".join(type(layer).__name__ for layer in list(stage.head.convolutions[0].children())[1:])
    convolution: Any = stage.head.convolutions.get_submodule("0.convolution")
    masks: Any = stage.masks
    count = len([layer for layer in masks[0].modules() if isinstance(layer, nn.Conv2d)])
    head = f"{len(stage.head.convolutions)} × ({convolution.out_channels} channels, {kinds})"
    boxes = f"{stage.refiner.out_features // 4} per region (per class)"
    shapes = f"{masks[1].mask_fcn_logits.out_channels} masks (per class)"
    printed = f"layer decay {paper.layer_decay:g}; × 0.1 after {numbers(paper.milestones)}; batch {paper.batch_size}"
    return {
        "blocks": numbers(body.blocks),
        "pyramid": f"{body.fpn.layer_blocks[0][0].out_channels} channels, strides {numbers(body.strides)}",
        **anchors(detector),
        "overlap of a hit": per_stage(f"{one.high_threshold:g}" for one in heads.matchers),
        "weight of a stage": per_stage(f"{weight:g}" for weight in cascade.WEIGHTS),
        "deviations of box coder": per_stage(numbers(1 / weight for weight in one.weights) for one in heads.coders),
        "regions per image": samplers(detector),
        "RoIAlign": f"{side(cascade.BOX_SIZE)} for boxes, {side(cascade.MASK_SIZE)} for masks",
        "box head": f"{head}, one layer of {stage.head.layer.out_features}",
        "boxes": f"{boxes}; {cascade.GIOU_WEIGHT:g} × GIoU of decoded boxes",
        "mask head": f"{count} × {masks[0][0][0].out_channels} channels, {shapes}",
        **detections(),
        "drop path": f"{schedule.drop_path:g}; ViT-S {small.drop_path:g}",
        **learning(detector, schedule),
        "rate after MoCo v3": f"{MoCoV3.facts.cascade_lr:g}",
        "layer decay": f"{schedule.layer_decay:g}; ViT-S {small.layer_decay:g}",
        "length": f"{schedule.epochs:g} epochs",
        "falls": f"× 0.1 after {numbers(schedule.milestones)}",
        "batch of ViT-S": f"{small.batch_size}",
        "`--detection.source paper`": printed,
    }


OURS = {"c4": cache(c4), "cascade": cache(cascade_values)}


@cache
def documented(family: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell."""
    text = DOCS.read_text(encoding="utf-8").split(TITLES[family])[1].split("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row for row in rows[2:]}


@pytest.mark.parametrize("family", list(OURS))
def test_every_row_has_the_codes_value(family: str) -> None:
    table, ours = documented(family), OURS[family]()
    assert table.keys() == ours.keys()
    assert {name: row[2] for name, row in table.items()} == ours


@pytest.mark.parametrize("family", list(OURS))
def test_a_row_is_the_same_as_its_source_or_says_why_not(family: str) -> None:
    for name, source, own, verdict in documented(family).values():
        assert source, name
        assert (source == own) == (verdict == "same"), name
        assert verdict == "same" or len(verdict) > 20, name


def test_a_changed_value_is_noticed() -> None:
    """The values are those of what is built, not constants of the test."""
    detector = full_size(BACKBONES["cascade"])
    changed = replace(published(detector, Facts()), lr=5e-4)
    assert learning(detector, changed)["rate"] != documented("cascade")["rate"][2]
    rpn: Any = detector.proposals
    rpn.inside = False
    try:
        assert anchors(detector)["anchors across the border"] != documented("cascade")["anchors across the border"][2]
    finally:
        rpn.inside = True
