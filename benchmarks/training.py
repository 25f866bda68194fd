"""Training speed in images per second: hirl against the same methods built from lightly's components, in one run.

    python -m benchmarks.training                 # on the built-in pictures
    python -m benchmarks.training --data FOLDER   # on images of your own
    python -m benchmarks.training --size 224      # with views of 224 px from JPEGs, generated or those of --data

Both sides train the network of the small recipe with the same batch size, number and size of views and augmentations.
The other side uses lightly's transforms on Pillow images in memory, a DataLoader with two persistent workers, lightly's
heads, losses, queue and momentum updates, and torch's optimiser. Epochs alternate and the fastest of each counts.
With `--size` both sides read files, and the networks that are made for 32 px are replaced by a ViT-Ti/16.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightly.loss import DINOLoss, IBOTPatchLoss, NTXentLoss, SwaVLoss
from lightly.models.modules import MaskedVisionTransformerTIMM
from lightly.models.modules.heads import (
    DINOProjectionHead,
    MoCoProjectionHead,
    SwaVProjectionHead,
    SwaVPrototypes,
)
from lightly.models.modules.memory_bank import MemoryBankModule
from lightly.models.utils import (
    batch_shuffle,
    batch_unshuffle,
    deactivate_requires_grad,
    random_block_mask,
    update_momentum,
)
from lightly.transforms.dino_transform import DINOTransform
from lightly.transforms.ibot_transform import IBOTTransform
from lightly.transforms.swav_transform import SwaVTransform
from lightly.utils.lars import LARS
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.epoch import make_arm
from benchmarks.views import BLURRED, WORKERS, Pictures, Transform, lightly_pair, photographs
from hirl.data.sources import ImageSet, open_images
from hirl.data.sources.images_in_memory import in_memory
from hirl.encoders.backbones import make_backbone, patch_size, width
from hirl.methods import DINO, IBOT, MoCoV2, SwAV
from hirl.train.recipe import recipe

Step = Callable[[Sequence[Tensor]], None]

VIT_TINY = {"backbone": "vit_tiny_patch16_224"}
LARGE_BATCH = 32  # images, with --size


def lightly_moco(method: MoCoV2, size: int) -> tuple[Transform, Step]:
    backbone = make_backbone(method.backbone, **method.backbone_args or {})
    features = width(backbone)
    head = MoCoProjectionHead(features, method.hidden or features, method.dim)
    query = nn.Sequential(backbone, head)
    key = deepcopy(query)
    deactivate_requires_grad(key)
    criterion = NTXentLoss(temperature=method.temperature, memory_bank_size=(method.queue_length, method.dim))
    optimiser = torch.optim.SGD(query.parameters(), lr=method.lr, momentum=0.9, weight_decay=method.weight_decay)

    def step(views: Sequence[Tensor]) -> None:
        update_momentum(query, key, m=method.momentum)
        first, second = views
        queries = query(first)
        with torch.no_grad():
            shuffled, order = batch_shuffle(second)
            keys = batch_unshuffle(key(shuffled), order)
        loss = criterion(queries, keys)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return lightly_pair(size), step


def lightly_swav(method: SwAV, size: int) -> tuple[Transform, Step]:
    backbone = make_backbone(method.backbone, **method.backbone_args or {})
    head = SwaVProjectionHead(width(backbone), method.hidden, method.dim)
    if method.head_batch_norm:
        head.layers.append(nn.BatchNorm1d(method.dim, affine=False))
    prototypes = SwaVPrototypes(method.dim, method.prototypes)
    queues = [MemoryBankModule(size=(method.queue_length, method.dim), feature_dim_first=False) for _ in range(2)]
    criterion = SwaVLoss(temperature=method.temperature, sinkhorn_epsilon=method.epsilon)
    weights = [*backbone.parameters(), *head.parameters(), *prototypes.parameters()]
    optimiser = LARS(weights, lr=method.lr, momentum=method.sgd_momentum, weight_decay=method.weight_decay)

    def step(views: Sequence[Tensor]) -> None:
        prototypes.normalize()
        units = [nn.functional.normalize(head(backbone(view)), dim=1) for view in views]
        cosines = [prototypes(crops) for crops in units]
        earlier = [queue(crops.detach(), update=True)[1] for queue, crops in zip(queues, units, strict=False)]
        with torch.no_grad():
            queued = [prototypes(crops) for crops in earlier] if method.queue_length else None
        criterion(cosines[:2], cosines[2:], queued).backward()
        optimiser.step()
        optimiser.zero_grad()

    transform = SwaVTransform(
        crop_sizes=(size, method.views(size)[-1].size),
        crop_counts=(2, method.local_crops),
        gaussian_blur=0.5 if size >= BLURRED else 0.0,
    )
    return transform, step


def dino_heads(method: DINO | IBOT, inputs: int) -> list[DINOProjectionHead]:
    """The heads of student and teacher: lightly's cannot be copied."""
    return [
        DINOProjectionHead(
            inputs,
            method.hidden,
            method.dim,
            method.prototypes,
            batch_norm=method.head_batch_norm,
            freeze_last_layer=int(method.frozen_epochs) if learns else -1,
        )
        for learns in (True, False)
    ]


def crops_of(transform: Callable[..., Transform], method: DINO | IBOT, size: int, split: float) -> Transform:
    """Global crops above and local ones below a share `split` of the image's area."""
    return transform(
        global_crop_size=size,
        global_crop_scale=(split, 1.0),
        local_crop_size=method.views(size)[-1].size,
        local_crop_scale=(0.05, split),
        n_local_views=method.local_crops,
        gaussian_blur=(1.0, 0.1, 0.5) if size >= BLURRED else (0.0, 0.0, 0.0),
    )


def lightly_ibot(method: IBOT, size: int) -> tuple[Transform, Step]:
    student, teacher = (
        MaskedVisionTransformerTIMM(make_backbone(method.backbone, **method.backbone_args or {})) for _ in range(2)
    )
    side = size // (patch_size(student.vit) or 1)
    heads = dino_heads(method, width(student.vit))
    patch_heads = dino_heads(method, width(student.vit)) if method.separate_patch_head else heads
    for network in (teacher, heads[1], patch_heads[1]):
        deactivate_requires_grad(network)
    of_crops, of_patches = DINOLoss(output_dim=method.prototypes), IBOTPatchLoss(output_dim=method.prototypes)
    learning = nn.ModuleList([student, heads[0], patch_heads[0]])
    following = nn.ModuleList([teacher, heads[1], patch_heads[1]])
    optimiser = torch.optim.AdamW(learning.parameters(), lr=method.lr)

    def step(views: Sequence[Tensor]) -> None:
        update_momentum(learning, following, m=method.teacher_momentum)
        images = torch.cat(list(views[:2]))
        mask = random_block_mask(size=(len(images), side, side), min_num_masks_per_block=1)  # of 16 patches
        hidden = mask.flatten(1)
        with torch.no_grad():
            clean = teacher.encode(images)
            targets, patch_targets = heads[1](clean[:, 0]), patch_heads[1](clean[:, 1:][hidden])
        masked = student.encode(images, mask=torch.cat((hidden.new_zeros(len(hidden), 1), hidden), dim=1))
        outputs = [*heads[0](masked[:, 0]).chunk(2), *(heads[0](student.encode(view)[:, 0]) for view in views[2:])]
        loss = of_crops(list(targets.chunk(2)), outputs, epoch=2)
        loss = loss + of_patches(patch_targets, patch_heads[0](masked[:, 1:][hidden]), mask)
        loss.backward()
        for head in (heads[0], patch_heads[0]):
            head.cancel_last_layer_gradients(current_epoch=2)
        optimiser.step()
        optimiser.zero_grad()

    return crops_of(IBOTTransform, method, size, 0.32), step


def lightly_dino(method: DINO, size: int) -> tuple[Transform, Step]:
    student, teacher = (make_backbone(method.backbone, **method.backbone_args or {}) for _ in range(2))
    heads = dino_heads(method, width(student))
    for network in (teacher, heads[1]):
        deactivate_requires_grad(network)
    criterion = DINOLoss(output_dim=method.prototypes)
    optimiser = torch.optim.AdamW([*student.parameters(), *heads[0].parameters()], lr=method.lr)

    def step(views: Sequence[Tensor]) -> None:
        update_momentum(student, teacher, m=method.teacher_momentum)
        update_momentum(heads[0], heads[1], m=method.teacher_momentum)
        with torch.no_grad():
            targets = [heads[1](teacher(view)) for view in views[:2]]
        loss = criterion(targets, [heads[0](student(view)) for view in views], epoch=2)
        loss.backward()
        heads[0].cancel_last_layer_gradients(current_epoch=2)
        optimiser.step()
        optimiser.zero_grad()

    return crops_of(DINOTransform, method, size, 0.25), step


LIGHTLY: dict[str, Callable[[Any, int], tuple[Transform, Step]]] = {
    "small/moco_v2": lightly_moco,
    "small/dino": lightly_dino,
    "small/swav": lightly_swav,
    "small/ibot": lightly_ibot,
}


def options_of(name: str, size: int | None) -> dict[str, Any]:
    """The options of a recipe; for larger images, with a network and a batch that fit them."""
    options = recipe(name)
    if size is None:
        return options
    method = options["method"]
    if "img_size" in (method.backbone_args or {}):
        method = type(method)(**method.arguments | VIT_TINY | {"backbone_args": {"img_size": size}})
    return options | {"method": method, "image_size": size, "batch_size": LARGE_BATCH}


def compare(
    name: str, options: dict[str, Any], images: ImageSet, pictures: Sequence[Image.Image | Path], repeats: int
) -> tuple[str, ...]:
    transform, step = LIGHTLY[name](options["method"], options["image_size"])
    batches: DataLoader[Any] = DataLoader(
        Pictures(pictures, transform),
        batch_size=options["batch_size"],
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    loop, _ = make_arm(options, images, None)
    times: list[tuple[float, float]] = []
    for _ in range(repeats + 1):
        start = perf_counter()
        loop.fit_epoch()
        between = perf_counter()
        for views in batches:
            step(views)
        times.append((between - start, perf_counter() - between))
    ours, theirs = (min(column) for column in zip(*times[1:], strict=True))  # the first warms up
    count = len(batches) * options["batch_size"]
    method = type(options["method"]).__name__
    return method, f"{count / ours:,.0f}", f"{count / theirs:,.0f}", f"{theirs / ours:.2f}×"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(LIGHTLY), metavar="recipe", help=", ".join(LIGHTLY))
    parser.add_argument("--data", help="images to train on; by default the built-in pictures")
    parser.add_argument(
        "--size", type=int, help="of views in pixels, made from files; by default from images in memory"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measured epochs per side, after a warm-up")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    table = Table("method", "hirl images/s", "lightly images/s", "ratio")
    with tempfile.TemporaryDirectory() as folder:
        pictures: Sequence[Image.Image | Path]
        if arguments.size is None:
            images = in_memory(open_images(arguments.data or "shapes"))
            pictures = [Image.fromarray(images.read(place).permute(1, 2, 0).numpy()) for place in range(len(images))]
        else:
            if arguments.data is None:
                photographs(Path(folder), 128)
            images = open_images(arguments.data or folder)
            pictures = [Path(images.path(place)) for place in range(len(images))]
        for name in arguments.recipes:
            options = options_of(name, arguments.size)
            table.add_row(*compare(name, options, images, pictures, arguments.repeats))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
