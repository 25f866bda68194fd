"""The parts of detectors against slow references, and what they make of images and encoders of any kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou

from hirl.encoders.backbones import make_backbone
from hirl.evals.detection.detector import Detector, make_detector, padded
from hirl.evals.detection.proposals import Anchors
from hirl.evals.detection.pyramid import PyramidBody, as_timm, pyramid_blocks
from hirl.evals.detection.regions import (
    HeadSizes,
    Regions,
    SeededSampler,
    Target,
    Targets,
    box_loss,
    detections,
    giou_loss,
    mask_loss,
    pool,
)

SMALL = HeadSizes(regions=16, proposals=20, channels=8, hidden=16)
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2}


def small(family: str, *, segment: bool = True, seed: int = 0) -> Detector:
    torch.manual_seed(seed)
    if family == "c4":
        encoder = make_backbone("resnet10t", channels=[8, 8, 16, 16])
    else:
        encoder = make_backbone("vit_tiny_patch16_224", **VIT)
    return make_detector(encoder, 3, segment=segment, sizes=SMALL)


def test_blocks_of_other_depths() -> None:
    assert pyramid_blocks(12) == [4, 6, 8, 12]
    assert pyramid_blocks(24) == [8, 12, 16, 24]
    assert pyramid_blocks(6) == [2, 3, 4, 6]
    assert pyramid_blocks(3) == [1, 2, 2, 3]
    assert pyramid_blocks(1) == [1, 1, 1, 1]


def test_levels_of_the_pyramid() -> None:
    detector = small("cascade").eval()
    maps = detector.body(torch.zeros(1, 3, 64, 96), [(64, 96)])
    assert [tuple(one.shape[1:]) for one in maps] == [(8, 32, 48), (8, 16, 24), (8, 8, 12), (8, 4, 6), (8, 2, 3)]


def target(*boxes: list[float], height: int = 64, width: int = 64) -> Target:
    masks = torch.zeros(len(boxes), height, width, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes, strict=True):
        mask[int(y1) : int(y2), int(x1) : int(x2)] = 1
    labels = torch.arange(len(boxes)) % 3 + 1
    return {"boxes": torch.tensor(boxes, dtype=torch.float32).view(-1, 4), "labels": labels, "masks": masks}


@pytest.mark.parametrize("segment", [True, False])
@pytest.mark.parametrize("family", ["c4", "cascade"])
def test_every_layer_learns(family: str, segment: bool, generator: torch.Generator) -> None:
    """An image without objects is among those of the batch."""
    detector = small(family, segment=segment).train()
    images = torch.randn(2, 3, 64, 64, generator=generator)
    _, losses = detector(
        images, [(64, 64), (50, 40)], Targets([target([4, 4, 40, 44], [20, 30, 60, 60]), target()]), [1, 2]
    )
    assert set(losses) >= {"objectness", "rpn_box_reg"}
    assert any(name.startswith("mask") for name in losses) == segment
    torch.stack(list(losses.values())).sum().backward()
    untouched = [name for name, parameter in detector.named_parameters() if parameter.grad is None]
    assert untouched == ([] if family == "c4" else ["body.vit.norm.weight", "body.vit.norm.bias"])
    found, _ = detector.eval()(images, [(64, 64), (50, 40)])
    for one, (height, width) in zip(found, ((64, 64), (50, 40)), strict=True):
        assert len(one.boxes) <= 100
        assert (one.boxes[:, 2] <= width).all()
        assert (one.boxes[:, 3] <= height).all()
        assert (one.scores.diff() <= 0).all()  # the surest first
        assert (one.masks is not None) == segment


@pytest.mark.parametrize("family", ["c4", "cascade"])
def test_only_images_without_objects_can_be_learnt_from(family: str) -> None:
    detector = small(family).train()
    _, losses = detector(torch.zeros(1, 3, 64, 64), [(64, 64)], Targets([target()]), [1])
    torch.stack(list(losses.values())).sum().backward()
    assert all(loss.isfinite() for loss in losses.values())


@pytest.mark.parametrize("family", ["c4", "cascade"])
def test_draws_are_a_function_of_the_images_seed(family: str, generator: torch.Generator) -> None:
    detector = small(family).eval()  # batch norm must not tie the images together
    detector.proposals.train()
    images = torch.randn(2, 3, 64, 64, generator=generator)
    targets = [target([4, 4, 40, 44]), target([20, 30, 60, 60])]

    def losses(order: list[int], seeds: list[int]) -> dict[str, Tensor]:
        chosen = [targets[place] for place in order]
        found: dict[str, Tensor] = detector(images[order], [(64, 64)] * len(order), Targets(chosen), seeds)[1]
        return found

    def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
        return all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)

    torch.manual_seed(1)
    first = losses([0, 1], [5, 6])
    torch.manual_seed(2)
    assert equal(first, losses([0, 1], [5, 6]))  # whatever torch's own generator is at
    assert equal(first, losses([1, 0], [6, 5]))  # wherever the image is in the batch
    assert not equal(first, losses([0, 1], [7, 8]))


def test_what_pads_a_batch_changes_nothing(generator: torch.Generator) -> None:
    """Tokens of an image are the same alone and beside a larger one: its positions are its own, padding is hidden."""
    detector = small("cascade").eval()
    body = detector.body
    assert isinstance(body, PyramidBody)
    sizes = [(40, 27), (64, 96)]
    images = [torch.randn(3, *size, generator=generator) for size in sizes]
    together = body._features(padded(images, 16), [(5, 4), (8, 12)])
    alone = body._features(padded(images[:1], 8), [(5, 4)])  # a grid of exactly 5 × 4 patches
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one[:1, :, :5, :4], other, rtol=1e-4, atol=1e-5)
        assert not one[0, :, 5:].any()
        assert not one[0, :, :, 4:].any()


def test_tokens_are_those_of_the_transformer(generator: torch.Generator) -> None:
    """On its own image size, timm's own forward pass gives the same maps."""
    detector = small("cascade").eval()
    body = detector.body
    assert isinstance(body, PyramidBody)
    images = torch.randn(2, 3, 32, 32, generator=generator)
    mine = body._features(images, [(4, 4)] * 2)
    theirs = body.vit.forward_intermediates(images, indices=[0, 1, 2], intermediates_only=True)
    for one, place in zip(mine, (0, 1, 1, 2), strict=True):
        torch.testing.assert_close(one, theirs[place])


def test_torchvisions_transformer_gives_the_same_features(generator: torch.Generator) -> None:
    from torchvision.models.vision_transformer import VisionTransformer

    theirs = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5).eval()
    theirs.heads = nn.Identity()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    images = torch.randn(2, 3, 32, 32, generator=generator)
    torch.testing.assert_close(as_timm(theirs).eval()(images), theirs(images), rtol=1e-4, atol=1e-5)
    assert isinstance(make_detector(theirs, 2, segment=False, sizes=SMALL).body, PyramidBody)


def test_torchvisions_resnet_becomes_c4() -> None:
    from torchvision.models import resnet18

    detector = make_detector(resnet18(), 2, segment=True, sizes=SMALL)
    _, losses = detector(torch.zeros(1, 3, 64, 64), [(64, 64)], Targets([target([1, 1, 40, 40])]), [0])
    assert all(loss.isfinite() for loss in losses.values())


@pytest.mark.parametrize("backbone", ["convnext_atto", "mixer_s32_224", "eva02_tiny_patch14_224"])
def test_other_networks_are_refused(backbone: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"it takes ResNets .* and plain vision transformers"):
        make_detector(make_backbone(backbone), 2, segment=True)


def slow_pool(features: Tensor, box: list[float], stride: float, size: int) -> Tensor:
    """RoIAlign of one box by its definition: the mean of bilinear samples, as many per cell as it has pixels."""
    x1, y1, x2, y2 = (side / stride - 0.5 for side in box)
    height, width = features.shape[1:]
    pooled = torch.zeros(features.shape[0], size, size)
    counts = [max(1, math.ceil((end - start) / size)) for start, end in ((y1, y2), (x1, x2))]
    for i in range(size):
        for j in range(size):
            for a in range(counts[0]):
                for b in range(counts[1]):
                    y = y1 + (i + (a + 0.5) / counts[0]) * (y2 - y1) / size
                    x = x1 + (j + (b + 0.5) / counts[1]) * (x2 - x1) / size
                    if y < -1 or x < -1 or y > height or x > width:
                        continue
                    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
                    for row in {int(y), min(int(y) + 1, height - 1)}:
                        for column in {int(x), min(int(x) + 1, width - 1)}:
                            near = (1 - abs(y - row)) * (1 - abs(x - column))
                            pooled[:, i, j] += features[:, row, column] * near / (counts[0] * counts[1])
    return pooled


def test_regions_are_pooled_from_the_level_of_their_size(generator: torch.Generator) -> None:
    strides = [4.0, 8.0, 16.0, 32.0]
    maps = [torch.randn(1, 3, int(256 / stride), int(256 / stride), generator=generator) for stride in strides]
    boxes = [[3.0, 5.0, 40.0, 60.0], [10.0, 20.0, 130.0, 150.0], [7.0, 9.0, 230.0, 250.0], [1.0, 1.0, 20.0, 18.0]]
    levels = [0, 1, 2, 0]  # sides of 45, 125, 232 and 18: the first level is for those below 112
    pooled = pool(maps, strides, [torch.tensor(boxes)], 3)
    for mine, box, level in zip(pooled, boxes, levels, strict=True):
        torch.testing.assert_close(mine, slow_pool(maps[level][0], box, strides[level], 3), rtol=1e-4, atol=1e-4)


def test_box_loss(generator: torch.Generator) -> None:
    targets = [target([10, 10, 30, 40])]
    boxes = torch.tensor([[8.0, 9.0, 33.0, 38.0], [0.0, 0.0, 5.0, 5.0]])
    matched = torch.zeros(2, dtype=torch.int64)
    regions = [Regions(boxes, torch.tensor([1, 0]), matched, torch.zeros(2, dtype=torch.bool))]
    deltas = torch.randn(2, 3, 4, generator=generator)
    wanted = [
        10 * (20 - 20.5) / 25,
        10 * (25 - 23.5) / 29,
        5 * math.log(20 / 25),
        5 * math.log(30 / 29),
    ]
    distance = sum(abs(float(mine) - theirs) for mine, theirs in zip(deltas[0, 0], wanted, strict=True))
    loss = box_loss(deltas, regions, targets, BoxCoder((10.0, 10.0, 5.0, 5.0)), beta=0.0)
    assert float(loss) == pytest.approx(distance / 2, rel=1e-4)  # over both regions, the background's too


def slow_giou(one: list[float], other: list[float]) -> float:
    """Intersection over union, less the share of the smallest box around both that neither covers."""

    def area(box: list[float]) -> float:
        return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])

    common = [max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])]
    around = [min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])]
    union = area(one) + area(other) - area(common)
    return area(common) / union - (area(around) - union) / area(around)


def test_giou_loss_compares_decoded_boxes(generator: torch.Generator) -> None:
    objects = [[10.0, 10.0, 30.0, 40.0], [40.0, 5.0, 60.0, 20.0]]
    targets = [target(*objects)]
    boxes = torch.tensor([[8.0, 9.0, 33.0, 38.0], [0.0, 0.0, 5.0, 5.0], [44.0, 6.0, 60.0, 22.0]])
    regions = [Regions(boxes, torch.tensor([1, 0, 2]), torch.tensor([0, 0, 1]), torch.zeros(3, dtype=torch.bool))]
    deltas = torch.randn(3, 3, 4, generator=generator, requires_grad=True)
    wanted = 0.0
    for row, label, place in ((0, 1, 0), (2, 2, 1)):
        dx, dy, dw, dh = (value * 0.1 for value in deltas[row, label - 1].tolist())
        x1, y1, x2, y2 = boxes[row].tolist()
        width, height = x2 - x1, y2 - y1
        x, y = (x1 + x2) / 2 + dx * width, (y1 + y2) / 2 + dy * height
        width, height = width * math.exp(2 * dw), height * math.exp(2 * dh)
        decoded = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        wanted += 1 - slow_giou(decoded, objects[place])
    loss = giou_loss(deltas, regions, targets, BoxCoder((10.0, 10.0, 5.0, 5.0)), weight=10.0)
    assert float(loss.detach()) == pytest.approx(10 * wanted / 3, rel=1e-4)  # over all regions, the background's too
    loss.backward()
    assert deltas.grad is not None
    assert deltas.grad[1].eq(0).all()  # the background has no box
    assert deltas.grad[0, 1:].eq(0).all()  # nor do other classes


def test_anchors_have_fixed_strides() -> None:
    """Whatever the size: on 800 pixels the coarsest map has 13 columns at a stride of 64, the last of them at 768."""
    strides = (4.0, 8.0, 16.0, 32.0, 64.0)
    generator = Anchors([[8 * stride] for stride in strides], strides)
    batch = ImageList(torch.zeros(1, 3, 800, 1088), [(800, 1067)])
    maps = [torch.zeros(1, 1, math.ceil(800 / stride), math.ceil(1088 / stride)) for stride in strides]
    (anchors,) = generator(batch, maps)
    levels = anchors.split([3 * one.shape[2] * one.shape[3] for one in maps])
    for stride, one, mine in zip(strides, maps, levels, strict=True):
        rows, columns = one.shape[2:]
        grid = mine.view(rows, columns, 3, 4)
        centres = (grid[..., :2] + grid[..., 2:]) / 2
        torch.testing.assert_close(centres[0, :, 0, 0], torch.arange(columns) * stride)
        torch.testing.assert_close(centres[:, 0, 0, 1], torch.arange(rows) * stride)
        sides = grid[0, 0, :, 2:] - grid[0, 0, :, :2]
        for (width, height), ratio in zip(sides.tolist(), (0.5, 1.0, 2.0), strict=True):
            assert height / width == pytest.approx(ratio)  # not rounded to pixels
            assert height * width == pytest.approx((8 * stride) ** 2)


def anchor_labels(family: str, boxes: list[list[float]], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Anchors and their labels for these objects in an image of 64 × 64 pixels, of which `size` are the image's."""
    detector = small(family)
    rpn = detector.proposals
    maps = detector.body(torch.zeros(1, 3, 64, 64), [size])
    (anchors,) = rpn.anchor_generator(ImageList(torch.zeros(1, 3, 64, 64), [size]), maps)  # type: ignore[operator]
    targets = [{"boxes": torch.tensor(boxes).view(-1, 4), "size": size}]
    labels, _ = rpn.assign_targets_to_anchors([anchors], targets)  # type: ignore[operator]
    return anchors, labels[0]


def test_a_cascade_ignores_anchors_that_cross_the_border() -> None:
    """The border is that of the image, not of what pads it; C4 learns from all, as detectron2 does."""
    for boxes in ([[20.0, 10.0, 40.0, 28.0]], []):
        anchors, labels = anchor_labels("cascade", boxes, (50, 60))
        crossing = (anchors[:, :2] < 0).any(1) | (anchors[:, 2] >= 60) | (anchors[:, 3] >= 50)
        assert crossing.any()
        assert (labels[crossing] == -1).all()
        assert (labels[~crossing] == 0).any()
        assert bool((labels == 1).any()) == bool(boxes)
        anchors, labels = anchor_labels("c4", boxes, (50, 60))
        assert (labels[(anchors[:, :2] < 0).any(1)] >= 0).any()


def test_the_best_anchor_of_an_object_overlaps_by_a_third_in_a_cascade() -> None:
    """An object that no anchor overlaps by 0.3 is not learnt from its best one; C4 learns it, as detectron2 does."""
    thin = [[30.0, 10.0, 32.0, 40.0]]
    anchors, labels = anchor_labels("cascade", thin, (64, 64))
    assert float(box_iou(torch.tensor(thin), anchors).max()) < 0.3
    assert not (labels == 1).any()
    anchors, labels = anchor_labels("c4", thin, (64, 64))
    assert float(box_iou(torch.tensor(thin), anchors).max()) < 0.3
    assert (labels == 1).any()


def test_an_image_smaller_than_all_anchors_can_be_learnt_from() -> None:
    detector = small("cascade").train()
    _, losses = detector(torch.zeros(1, 3, 16, 16), [(9, 9)], Targets([target([1, 1, 8, 8], height=16, width=16)]), [1])
    assert all(loss.isfinite() for loss in losses.values())
    assert float(losses["objectness"].detach()) == 0


def test_drop_path_belongs_to_the_image(generator: torch.Generator) -> None:
    """What is dropped is a function of the image's seed, wherever it is in the batch; in testing nothing is."""
    detector = small("cascade").train()
    detector.set_drop_path(0.5)
    assert [path.rate for path in detector.drop_paths] == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5]
    images = torch.randn(2, 3, 64, 64, generator=generator)
    targets = [target([4, 4, 40, 44]), target([20, 30, 60, 60])]

    def drawn() -> Tensor:
        found = [path.factors for path in detector.drop_paths]
        return torch.stack([one for one in found if one is not None])  # (paths, images)

    def factors(order: list[int], seeds: list[int]) -> Tensor:
        detector(images[order], [(64, 64)] * len(order), Targets([targets[place] for place in order]), seeds)
        return drawn()

    torch.manual_seed(1)
    first = factors([0, 1], [5, 6])
    torch.manual_seed(2)
    assert torch.equal(first.flip(1), factors([1, 0], [6, 5]))
    assert torch.equal(first[:, 1:], factors([1], [6]))
    detector._draw_paths(range(200), images.device)
    many = drawn()
    assert many.unique().tolist() == pytest.approx([0, 1, 4 / 3, 2])
    assert 0.4 < float((many[-1] == 0).float().mean()) < 0.6
    detector.eval()
    body = detector.body
    detector.set_drop_path(0.9)
    dropped = body(images, [(64, 64)] * 2)
    detector.set_drop_path(0.0)
    for one, other in zip(dropped, body(images, [(64, 64)] * 2), strict=True):
        torch.testing.assert_close(one, other)


def test_a_dilated_resnet_is_refused() -> None:
    with pytest.raises(ValueError, match="third stage has a stride of 16, but this one is dilated"):
        make_detector(make_backbone("resnet10t", channels=[8, 8, 16, 16], output_stride=8), 2, segment=True)


def test_mask_loss_compares_the_part_in_the_box() -> None:
    targets = [target([16, 16, 48, 48])]
    regions = [
        Regions(torch.tensor([[16.0, 16.0, 80.0, 48.0]]), torch.tensor([1]), torch.tensor([0]), torch.tensor([False]))
    ]
    logits = torch.full((1, 3, 4, 4), -20.0)
    logits[:, 0, :, :2] = 20.0  # the left half of the box is the object
    assert float(mask_loss(logits, regions, targets)) < 1e-6
    assert float(mask_loss(-logits, regions, targets)) > 10


def test_detections_are_sure_and_do_not_repeat() -> None:
    boxes = torch.tensor([[10.0, 10, 30, 30], [11.0, 10, 31, 30], [50.0, 50, 70, 90], [10.0, 10, 30, 30]])
    scores = torch.tensor([[0.1, 0.9, 0.0], [0.2, 0.8, 0.0], [0.3, 0.0, 0.7], [0.96, 0.0, 0.04]])
    found = detections(scores, boxes[:, None].expand(-1, 2, -1), (64, 64))
    assert found.scores.tolist() == pytest.approx([0.9, 0.7])
    assert found.labels.tolist() == [1, 2]
    assert found.boxes.tolist() == [[10, 10, 30, 30], [50, 50, 64, 64]]  # cut to the image


def test_the_sampler_keeps_its_share() -> None:
    sampler = SeededSampler(16, 0.25, 0)
    sampler.seeds = [1, 2]
    labels = [torch.tensor([1] * 10 + [0] * 100 + [-1] * 10), torch.tensor([2] * 2 + [0] * 5)]
    positive, negative = sampler(labels)
    assert [int(one.sum()) for one in positive] == [4, 2]
    assert [int(one.sum()) for one in negative] == [12, 5]
    for one, other, mine in zip(positive, negative, labels, strict=True):
        assert (mine[one.bool()] > 0).all()
        assert (mine[other.bool()] == 0).all()
