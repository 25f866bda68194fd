"""The full-size detectors have the layers and parameters of the published ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hirl.encoders.backbones import make_backbone
from hirl.evals.detection.c4 import C4Heads
from hirl.evals.detection.cascade import CascadeHeads
from hirl.evals.detection.detector import Detector, make_detector
from hirl.evals.detection.pyramid import PyramidBody

MIB = 2**20


def parameter_count(module: nn.Module) -> int:
    """The number of parameters, buffers left out."""
    return sum(parameter.numel() for parameter in module.parameters())


def full_size(backbone: str, *, segment: bool, classes: int = 80) -> Detector:
    """Without memory for its weights."""
    with torch.device("meta"):
        return make_detector(make_backbone(backbone), classes, segment=segment)


# Weights and statistics of detectron2's R50-C4 models (ids 137257644 and 137259246), whose files hold 129.34 and 137.42
# MiB and whose parameters are given as 34 and 36 million (paperswithcode.com/lib/detectron2).
@pytest.mark.parametrize(("segment", "mebibytes", "millions"), [(False, 129.34, 34), (True, 137.42, 36)])
def test_c4_is_as_large_as_published(segment: bool, mebibytes: float, millions: int) -> None:
    detector = full_size("resnet50", segment=segment)
    assert isinstance(detector.heads, C4Heads)
    extra = parameter_count(detector.heads.norm)  # MoCo's, which detectron2's own models do not have
    assert extra == 2 * 2048
    parameters = parameter_count(detector) - extra
    assert round(parameters / 1e6) == millions
    statistics = sum(
        layer.running_mean.numel() + layer.running_var.numel()
        for layer in detector.modules()
        if isinstance(layer, nn.BatchNorm2d) and layer is not detector.heads.norm
        if layer.running_mean is not None and layer.running_var is not None
    )
    stored = (parameters + statistics) * 4 / MIB
    assert 0 <= mebibytes - stored < 0.05  # the names of the tensors are in the file as well


def test_layers_of_c4() -> None:
    shapes = {name: tuple(value.shape) for name, value in full_size("resnet50", segment=True).named_parameters()}
    assert shapes["proposals.head.conv.0.0.weight"] == (1024, 1024, 3, 3)
    assert shapes["proposals.head.cls_logits.weight"] == (15, 1024, 1, 1)  # 5 sizes × 3 ratios
    assert shapes["proposals.head.bbox_pred.weight"] == (60, 1024, 1, 1)
    assert shapes["heads.res5.2.conv3.weight"] == (2048, 512, 1, 1)
    assert shapes["heads.norm.weight"] == (2048,)
    assert shapes["heads.classifier.weight"] == (81, 2048)
    assert shapes["heads.refiner.weight"] == (320, 2048)  # per class
    assert shapes["heads.masks.conv5_mask.weight"] == (2048, 256, 2, 2)
    assert shapes["heads.masks.mask_fcn_logits.weight"] == (80, 256, 1, 1)


def cascade_reference(width: int, depth: int, patch: int, size: int, classes: int, *, segment: bool) -> int:
    """Layer by layer from the published configuration (iBOT's vit_base_giou_4conv1f_coco_3x).

    iBOT's own network lacks the transformer's last norm (2 · width), which is frozen here, and stores positions of the
    grid of 672 × 1092 pixels instead of those that were pretrained.
    """

    def linear(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    def convolution(inputs: int, outputs: int, side: int) -> int:
        return inputs * outputs * side**2 + outputs

    block = (
        linear(width, 3 * width) + linear(width, width) + 2 * linear(width, 4 * width) - 4 * width + width + 4 * width
    )
    vit = convolution(3, width, patch) + width * (1 + 1 + (size // patch) ** 2) + depth * block + 2 * width
    up = convolution(width, width, 2)
    rescale = up + 2 * width + up + up  # ×4 with batch norm between, ×2
    pyramid = 4 * (convolution(width, 256, 1) + convolution(256, 256, 3))
    rpn = convolution(256, 256, 3) + convolution(256, 3, 1) + convolution(256, 12, 1)
    shared = 4 * (256 * 256 * 9 + 2 * 256)  # four convolutions without bias, each with a batch norm
    box = shared + linear(256 * 49, 1024) + linear(1024, classes + 1) + linear(1024, 4 * classes)
    mask = 4 * convolution(256, 256, 3) + convolution(256, 256, 2) + convolution(256, classes, 1)
    return vit + rescale + pyramid + rpn + 3 * (box + (mask if segment else 0))


@pytest.mark.parametrize("segment", [False, True])
def test_the_cascade_is_as_large_as_its_configuration(segment: bool) -> None:
    wanted = cascade_reference(768, 12, 16, 224, 80, segment=segment)
    assert parameter_count(full_size("vit_base_patch16_224", segment=segment)) == wanted
    assert wanted == (151_407_282 if segment else 143_477_442)


def test_layers_of_the_cascade() -> None:
    detector = full_size("vit_base_patch16_224", segment=True)
    shapes = {name: tuple(value.shape) for name, value in detector.named_parameters()}
    assert isinstance(detector.body, PyramidBody)
    assert detector.body.blocks == [4, 6, 8, 12]
    for stage in range(3):
        for place in range(4):
            assert shapes[f"heads.stages.{stage}.head.convolutions.{place}.convolution.weight"] == (256, 256, 3, 3)
            assert shapes[f"heads.stages.{stage}.head.convolutions.{place}.norm.weight"] == (256,)
        assert shapes[f"heads.stages.{stage}.head.layer.weight"] == (1024, 256 * 7 * 7)
        assert shapes[f"heads.stages.{stage}.refiner.weight"] == (320, 1024)  # per class
        assert shapes[f"heads.stages.{stage}.classifier.weight"] == (81, 1024)
        assert shapes[f"heads.stages.{stage}.masks.1.mask_fcn_logits.weight"] == (80, 256, 1, 1)
    assert isinstance(detector.heads, CascadeHeads)
    assert [matcher.high_threshold for matcher in detector.heads.matchers] == [0.5, 0.6, 0.7]
    sizes = detector.proposals.anchor_generator.sizes  # type: ignore[union-attr]
    assert sizes == ((32,), (64,), (128,), (256,), (512,))


def test_proposals_and_regions_per_image() -> None:
    c4, cascade = (full_size(name, segment=True) for name in ("resnet50", "vit_base_patch16_224"))
    for detector, before, after in ((c4, (12000, 6000), (2000, 1000)), (cascade, (2000, 1000), (2000, 1000))):
        rpn = detector.proposals
        for place, training in enumerate((True, False)):
            rpn.train(training)
            assert rpn.pre_nms_top_n() == before[place]  # type: ignore[operator]
            assert rpn.post_nms_top_n() == after[place]  # type: ignore[operator]
        assert next(detector.samplers).batch_size_per_image == 256
        assert {sampler.batch_size_per_image for sampler in list(detector.samplers)[1:]} == {512}
        assert {sampler.positive_fraction for sampler in list(detector.samplers)[1:]} == {0.25}
    assert c4.proposals.anchor_generator.sizes == ((32, 64, 128, 256, 512),)  # type: ignore[union-attr]
    assert c4.proposals.anchor_generator.aspect_ratios == ((0.5, 1.0, 2.0),)  # type: ignore[union-attr]
    assert c4.proposals.beta == 0  # absolute differences
    assert cascade.proposals.beta == pytest.approx(1 / 9)
