"""C4's shared head and the three stages of a cascade: what they learn from, hand on and average."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hirl.encoders.backbones import make_backbone
from hirl.evals.detection import regions
from hirl.evals.detection.c4 import C4Heads
from hirl.evals.detection.cascade import BoxHead, CascadeHeads
from hirl.evals.detection.regions import HeadSizes, Regions, Target

SIZES = HeadSizes(regions=16, proposals=20, channels=8, hidden=16)
STRIDES = [4.0, 8.0, 16.0, 32.0, 64.0]


@pytest.fixture
def maps(generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(1, 8, int(64 / stride), int(64 / stride), generator=generator) for stride in STRIDES]


@pytest.fixture
def proposals() -> list[Tensor]:
    return [torch.tensor([[4.0, 4, 40, 44], [8, 2, 44, 40], [30, 30, 60, 62], [1, 40, 20, 60], [2, 2, 12, 9]])]


def objects() -> list[Target]:
    masks = torch.zeros(1, 64, 64, dtype=torch.uint8)
    masks[:, 4:44, 4:40] = 1
    return [{"boxes": torch.tensor([[4.0, 4, 40, 44]]), "labels": torch.tensor([2]), "masks": masks}]


def cascade() -> CascadeHeads:
    torch.manual_seed(0)
    heads = CascadeHeads(3, SIZES, segment=True)
    for sampler in heads.samplers:
        sampler.seeds = [0]
    return heads


def test_stages_count_less_and_less(
    maps: list[Tensor], proposals: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []

    def giou_loss(*_: Any, weight: float) -> Tensor:
        weights.append(weight)
        return torch.tensor(1.0)

    monkeypatch.setattr(regions, "class_loss", lambda *_: torch.tensor(1.0))
    monkeypatch.setattr(regions, "giou_loss", giou_loss)
    monkeypatch.setattr(regions, "mask_loss", lambda *_: torch.tensor(1.0))
    _, losses = cascade()(maps, STRIDES, proposals, [(64, 64)], objects())
    wanted = {f"{kind}{stage}": 0.5**stage for stage in range(3) for kind in ("class", "box", "mask")}
    assert {name: float(loss) for name, loss in losses.items()} == wanted
    assert weights == [10, 10, 10]


def test_each_stage_learns_from_the_boxes_of_the_last(
    maps: list[Tensor], proposals: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are, without a gradient, and without the objects' own boxes, which join every stage anew."""
    heads = cascade()
    for stage in heads.stages:
        nn.init.constant_(stage.refiner.bias, 0.5)  # type: ignore[union-attr, arg-type]
    given: list[list[Tensor]] = []
    sampled: list[list[Regions]] = []
    overlaps = []
    sample = regions.sample_regions

    def watched(boxes: Any, targets: Any, matcher: Any, sampler: Any) -> Any:
        given.append(list(boxes))
        overlaps.append(matcher.high_threshold)
        sampled.append(sample(boxes, targets, matcher, sampler))
        return sampled[-1]

    monkeypatch.setattr(regions, "sample_regions", watched)
    heads(maps, STRIDES, proposals, [(64, 64)], objects())
    assert overlaps == [0.5, 0.6, 0.7]
    assert torch.equal(given[0][0], proposals[0])
    for before, after in zip(sampled[:2], given[1:], strict=True):
        (one,), (boxes,) = before, after
        assert int(one.is_ground_truth.sum()) == 1
        assert len(boxes) == len(one.boxes) - 1
        assert not boxes.requires_grad
        assert (boxes >= 0).all()
        assert (boxes <= 64).all()
    moved = given[1][0][0] - sampled[0][0].boxes[0]
    height, width = 40.0, 36.0
    assert moved[:2].sum() + moved[2:].sum() == pytest.approx(2 * (width + height) * 0.5 / 10, rel=0.1)


def test_later_stages_refine_more_finely() -> None:
    for coder, (centre, side) in zip(cascade().coders, ((0.1, 0.2), (0.05, 0.1), (0.033, 0.067)), strict=True):
        assert [1 / weight for weight in coder.weights] == pytest.approx([centre, centre, side, side])


def test_boxes_are_refined_by_the_deltas_of_their_class(
    maps: list[Tensor], proposals: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training that of the object for hits and the likeliest class for the background; in testing the likeliest."""
    heads = cascade()
    moves = torch.tensor([1.0, 2.0, 3.0])  # of the centre along x, by class, over a tenth of the width
    for stage in heads.stages:
        for layer in (stage.classifier, stage.refiner):
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type, union-attr]
        stage.refiner.bias.data = torch.zeros(3, 4).index_put((torch.arange(3), torch.tensor(0)), moves).flatten()  # type: ignore[union-attr]
        stage.classifier.bias.data = torch.tensor([9.0, 0.0, 0.0, 1.0])  # type: ignore[union-attr]
    given: list[Tensor] = []
    sampled: list[Regions] = []
    sample = regions.sample_regions

    def watched(boxes: Any, *rest: Any) -> Any:
        given.append(boxes[0])
        sampled.append(sample(boxes, *rest)[0])
        return [sampled[-1]]

    monkeypatch.setattr(regions, "sample_regions", watched)
    wide = [(640, 640)]  # nothing is cut at the border
    heads(maps, STRIDES, proposals, wide, objects())
    first = sampled[0]
    classes = torch.where(first.labels == 2, 2, 3)[~first.is_ground_truth]  # objects() are of class 2
    before = first.boxes[~first.is_ground_truth]
    widths = before[:, 2] - before[:, 0]
    torch.testing.assert_close(given[1][:, 0] - before[:, 0], 0.1 * widths * classes, rtol=1e-4, atol=1e-4)
    assert set(classes.tolist()) == {2, 3}
    heads.eval()
    monkeypatch.setattr(regions, "SCORE", 0.0)
    monkeypatch.setattr(regions, "OVERLAP", 1.0)
    (found,), _ = heads(maps, STRIDES, [proposals[0][:1]], wide, None)
    width = float(proposals[0][0, 2] - proposals[0][0, 0])
    for box, label in zip(found.boxes, found.labels.tolist(), strict=True):
        moved = width * (0.1 * 3 + 0.05 * 3 + 0.033 * float(moves[label - 1]))  # the last stage's boxes are per class
        assert float(box[0]) == pytest.approx(float(proposals[0][0, 0]) + moved, rel=1e-4)
    assert sorted(found.labels.tolist()) == [1, 2, 3]


def test_a_box_head_has_four_convolutions_with_batch_norm_and_one_layer(generator: torch.Generator) -> None:
    head = BoxHead(4, 5).eval()
    pooled = torch.randn(2, 4, 7, 7, generator=generator)
    wanted = pooled
    for number in range(4):
        convolution = head.convolutions.get_submodule(f"{number}.convolution")
        norm = head.convolutions.get_submodule(f"{number}.norm")
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        assert convolution.bias is None
        nn.init.normal_(norm.running_mean, generator=generator)  # type: ignore[arg-type]
        wanted = norm(nn.functional.conv2d(wanted, convolution.weight, padding=1)).clamp(min=0)
    wanted = (wanted.flatten(1) @ head.layer.weight.T + head.layer.bias).clamp(min=0)
    torch.testing.assert_close(head(pooled), wanted, rtol=1e-4, atol=1e-5)


def test_scores_and_masks_of_the_stages_are_averaged(maps: list[Tensor], proposals: list[Tensor]) -> None:
    heads = cascade().eval()
    wanted = torch.zeros(4)
    for number, stage in enumerate(heads.stages):
        bias = torch.tensor([0.0, 2.0 + number, 0.5, 0.0])
        for layer in (stage.classifier, stage.refiner):
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type, union-attr]
        stage.classifier.bias.data = bias  # type: ignore[union-attr]
        wanted += bias / 3
        logits = stage.masks[1].mask_fcn_logits  # type: ignore[union-attr, index]
        nn.init.zeros_(logits.weight)
        nn.init.constant_(logits.bias, float(number))
    (found,), _ = heads(maps, STRIDES, proposals, [(64, 64)], None)
    assert float(found.scores[0]) == pytest.approx(float(wanted.softmax(0)[1]), abs=1e-5)  # of logits, as mmdetection
    assert found.masks is not None
    mean = torch.tensor([0.0, 1.0, 2.0]).sigmoid().mean()
    assert float(found.masks[0].mean()) == pytest.approx(float(mean), abs=1e-5)


def c4_heads() -> C4Heads:
    torch.manual_seed(0)
    resnet = make_backbone("resnet10t", channels=[8, 8, 8, 16])
    heads = C4Heads(resnet, 16, 3, SIZES, segment=True)
    heads.samplers[0].seeds = [0]
    return heads


def test_boxes_and_masks_share_one_pass_of_res5(proposals: list[Tensor], generator: torch.Generator) -> None:
    """Another pass over the positive regions alone would have other statistics of batch norm."""
    heads = c4_heads().train()
    calls: list[Tensor] = []
    heads.norm.register_forward_hook(lambda _module, _given, found: calls.append(found))
    _, losses = heads([torch.randn(1, 8, 4, 4, generator=generator)], [16.0], proposals, [(64, 64)], objects())
    assert len(calls) == 1
    assert calls[0].shape[1:] == (16, 7, 7)
    assert set(losses) == {"class", "box", "mask"}
    torch.testing.assert_close(calls[0].mean((0, 2, 3)), torch.zeros(16), atol=1e-4, rtol=0)  # it ends in a norm


def test_c4_is_refined_per_class_by_absolute_differences(
    proposals: list[Tensor], monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    given: list[tuple[tuple[int, ...], Any, float]] = []

    def box_loss(deltas: Tensor, _regions: Any, _targets: Any, coder: Any, *, beta: float) -> Tensor:
        given.append((tuple(deltas.shape[1:]), coder.weights, beta))
        return deltas.sum()

    monkeypatch.setattr(regions, "box_loss", box_loss)
    c4_heads()([torch.randn(1, 8, 4, 4, generator=generator)], [16.0], proposals, [(64, 64)], objects())
    assert given == [((3, 4), (10.0, 10.0, 5.0, 5.0), 0.0)]
