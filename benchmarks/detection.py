"""A detector's step against torchvision's fasterrcnn_resnet50_fpn, where its time goes, and one step at full size.

python -m benchmarks.detection                # at 320 px: times, ratio, parts
python -m benchmarks.detection --full         # one step at 800 px and its peak memory
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure import THREADS, peak_mebibytes, seconds
from hirl.encoders.backbones import make_backbone
from hirl.evals.detection.detector import Detector, freeze_unused, make_detector
from hirl.evals.detection.regions import Target, Targets
from hirl.evals.detection.schedule import make_optimiser, published
from hirl.methods.facts import Facts

OURS = {
    "Faster R-CNN C4, ResNet-50": ("resnet50", False),
    "Mask R-CNN C4, ResNet-50": ("resnet50", True),
    "Cascade R-CNN, ViT-B/16": ("vit_base_patch16_224", False),
    "Cascade Mask R-CNN, ViT-B/16": ("vit_base_patch16_224", True),
}
THEIRS = "torchvision fasterrcnn_resnet50_fpn"
CLASSES, OBJECTS = 80, 8
SHAPE = (3, 4)  # height to width


def parameter_count(module: nn.Module) -> int:
    """The number of parameters, buffers left out."""
    return sum(parameter.numel() for parameter in module.parameters())


def picture(side: int) -> tuple[Tensor, Target]:
    """One image whose shorter side is `side`, and some objects in it."""
    generator = torch.Generator().manual_seed(0)
    height, width = side, side * SHAPE[1] // SHAPE[0] // 32 * 32
    corners = torch.rand(OBJECTS, 2, generator=generator) * torch.tensor([width, height]) * 0.6
    sizes = (0.1 + 0.3 * torch.rand(OBJECTS, 2, generator=generator)) * torch.tensor([width, height])
    boxes = torch.cat((corners, corners + sizes), dim=1)
    masks = torch.zeros(OBJECTS, height, width, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.long().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    labels = torch.randint(1, CLASSES + 1, (OBJECTS,), generator=generator)
    return torch.rand(3, height, width, generator=generator), {"boxes": boxes, "labels": labels, "masks": masks}


def make(name: str) -> Detector:
    backbone, segment = OURS[name]
    torch.manual_seed(0)
    detector = make_detector(make_backbone(backbone), CLASSES, segment=segment)
    freeze_unused(detector)
    return detector.train()


def prepared(name: str, side: int) -> Callable[[], None]:
    """Forward and backward of one image."""
    image, target = picture(side)
    if name == THEIRS:
        from torchvision.models.detection import fasterrcnn_resnet50_fpn

        theirs = fasterrcnn_resnet50_fpn(
            weights=None,
            weights_backbone=None,
            num_classes=CLASSES + 1,
            trainable_backbone_layers=5,
            min_size=side,
            max_size=max(image.shape),
        ).train()
        boxes: dict[str, Any] = {"boxes": target["boxes"], "labels": target["labels"]}
        return lambda: torch.stack(list(theirs([image], [boxes]).values())).sum().backward()
    detector = make(name)
    size = (image.shape[1], image.shape[2])

    def step() -> None:
        _, losses = detector(image[None], [size], Targets([target]), [0])
        torch.stack(list(losses.values())).sum().backward()

    return step


def parts(name: str, side: int) -> dict[str, float]:
    """Seconds of one step by part: forward of body, proposals and heads, and the backward pass."""
    detector = make(name)
    image, target = picture(side)
    taken: dict[str, float] = {}
    starts: dict[str, float] = {}

    def timed(part: str, module: nn.Module) -> list[Any]:
        def before(*_: Any) -> None:
            starts[part] = time.perf_counter()

        def after(*_: Any) -> None:
            taken[part] = time.perf_counter() - starts[part]

        return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]

    torch.set_num_threads(THREADS)
    best: dict[str, float] = {}
    with ExitStack() as stack:
        for part in ("body", "proposals", "heads"):
            for handle in timed(part, detector.get_submodule(part)):
                stack.callback(handle.remove)
        for _ in range(3):
            _, losses = detector(image[None], [(image.shape[1], image.shape[2])], Targets([target]), [0])
            start = time.perf_counter()
            torch.stack(list(losses.values())).sum().backward()
            taken["backward"] = time.perf_counter() - start
            if not best or sum(taken.values()) < sum(best.values()):
                best = dict(taken)
    return best


def against_torchvision(side: int) -> None:
    height, width = picture(side)[0].shape[1:]
    title = f"Forward + backward of one image of {width} × {height}, {THREADS} threads"
    table = Table(title=title, title_justify="left")
    for heading in ("detector", "parameters", "seconds", "× torchvision's", "body", "proposals", "heads", "backward"):
        table.add_column(heading, justify="left" if heading == "detector" else "right")
    reference = seconds(prepared(THEIRS, side), repeats=3)
    table.add_row(THEIRS, "43.4 M", f"{reference:.2f}", "1.00", "", "", "", "")
    for name in OURS:
        taken = seconds(prepared(name, side), repeats=3)
        shares = [f"{value:.2f}" for value in parts(name, side).values()]
        count = f"{parameter_count(make(name)) / 1e6:.1f} M"
        table.add_row(name, count, f"{taken:.2f}", f"{taken / reference:.2f}", *shares)
    Console(width=140).print(table)


def one_step(name: str, side: int) -> Callable[[], None]:
    """Forward, backward and the optimiser's step."""
    work = prepared(name, side)
    detector = next(cell.cell_contents for cell in work.__closure__ or () if isinstance(cell.cell_contents, Detector))
    optimiser = make_optimiser(detector, published(detector, Facts()))

    def step() -> None:
        start = time.perf_counter()
        work()
        optimiser.step()
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)

    return step


def full_size(side: int) -> None:
    for name in ("Mask R-CNN C4, ResNet-50", "Cascade Mask R-CNN, ViT-B/16"):
        height, width = picture(side)[0].shape[1:]
        memory = peak_mebibytes(one_step, name, side)
        print(f"{name}, one image of {width} × {height}: {memory:,.0f} MiB beyond the weights", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="one step at 800 px with its memory")
    parser.add_argument("--side", type=int, default=None, help="the shorter side; 320, or 800 with --full")
    arguments = parser.parse_args()
    if arguments.full:
        full_size(arguments.side or 800)
    else:
        against_torchvision(arguments.side or 320)


if __name__ == "__main__":
    main()
