"""Settings for a run that was given none: a method, an image size, a batch and epochs that suit images and machine.

Pure functions of (number and size of the images, machine); each choice comes with its reason. The small networks and
their settings are those of the recipes in small/.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hirl.config import read_options
from hirl.methods import DINO, IBOT, Method, MoCoV2, MoCoV3, SimSiam, SwAV
from hirl.train.machine import GB, Machine

RECIPES: dict[type[Method], str] = {
    MoCoV2: "small/moco_v2",
    SimSiam: "small/simsiam",
    SwAV: "small/swav",
    MoCoV3: "small/moco_v3",
    DINO: "small/dino",
    IBOT: "small/ibot",
}
USUAL: type[Method] = MoCoV2  # the fastest of the six on a CPU, and indifferent to the size of the images
LARGER = "imagenet/moco_v2"

# On a CPU, an image size is taken if the run would end within so many minutes.
MINUTES = {96: 10, 64: 40, 32: 60}
# Milliseconds that an image takes on one core with small/moco_v2: reading a photo, and the network at 96 px. 1,500
# photos took 623 s for 100 epochs at 64 px on two cores (benchmarks.photos).
READING, NETWORK = 2.5, 13.0
OTHERS = 2.0  # the other methods need up to twice as long
SMALL_BYTES = 3e6  # memory per image of the small networks at 64 px
# Epochs: 100 for 1,500 images. The total number of images processed grows more slowly than their number.
EPOCHS, EPOCHS_AT, EPOCHS_POWER = 100, 1_500, 0.6
LEAST_EPOCHS, MOST_EPOCHS = 10.0, 200.0

# On a GPU.
LARGE_SET = 20_000  # images; above, a ResNet-50
GPU_BYTES = {"resnet18": 30e6, "resnet50": 110e6}  # memory per image at 224 px


@dataclass(frozen=True)
class Choices:
    """What was chosen, and the reason for each by its name."""

    method: Method
    image_size: int
    batch_size: int
    epochs: int
    weight: float  # of L_SPD
    reasons: dict[str, str] = field(default_factory=dict)


def choose(
    kind: type[Method],
    N: int,
    side: int,
    machine: Machine,
    *,
    image_size: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
) -> Choices:
    """Choose what is None for N images, whose shorter side typically has `side` pixels. A given value stays.

    `kind` is one of the methods in RECIPES.
    """
    on_gpu = machine.device == "cuda"
    reasons: dict[str, str] = {}
    if epochs is None:
        epochs = _epochs(N)
        reasons["epochs"] = f"{epochs * N:,} images in all"
        if on_gpu:
            epochs = max(epochs, 50)
            reasons["epochs"] = "more for fewer images"
    if image_size is None and on_gpu:
        image_size = _gpu_size(kind, side)
        reasons["image_size"] = f"at most the {side} px of the images, and 224"
    elif image_size is None:
        image_size = _cpu_size(kind, N, side, epochs, machine.cores)
        reasons["image_size"] = _size_reason(kind, N, side, epochs, machine.cores, image_size)
        longest = MINUTES[min(MINUTES)]
        if "epochs" in reasons and minutes(kind, N, image_size, epochs, machine.cores) > longest:
            epochs = max(2, int(epochs * longest / minutes(kind, N, image_size, epochs, machine.cores)))
            reasons["epochs"] = f"as many as fit into an hour with {N:,} images"
    if batch_size is None:
        per_image = _bytes(kind, N, image_size) if on_gpu else SMALL_BYTES * (image_size / 64) ** 2
        batch_size, reasons["batch_size"] = _batch(N, machine, per_image)
    method = _gpu_method(kind, N, batch_size) if on_gpu else _small_method(kind, N, image_size, batch_size)
    reasons["backbone"] = (
        f"for {'more' if N >= LARGE_SET else 'fewer'} than {LARGE_SET:,} images on a GPU"
        if on_gpu
        else "small, since there is no CUDA GPU"
    )
    if kind is USUAL:
        reasons["method"] = "the fastest of the six methods here, for images of any size"
    weight = 1.0 if on_gpu else float(read_options(RECIPES[kind])["hierarchy"]["weight"])
    reasons["weight"] = f"of HIRL's loss, as {'in the paper' if on_gpu else 'measured with this method and network'}"
    return Choices(method, image_size, batch_size, epochs, weight, reasons)


def minutes(kind: type[Method], N: int, image_size: int, epochs: int, cores: int) -> float:
    """Roughly how long a small network trains on a CPU. A run measures its own speed over its first steps."""
    per_image = (READING + NETWORK * (image_size / 96) ** 2) * (1 if kind is USUAL else OTHERS)
    return epochs * N * per_image / 1000 / cores / 60


def _epochs(N: int) -> int:
    wanted = EPOCHS * (EPOCHS_AT / N) ** EPOCHS_POWER
    return int(float(f"{min(MOST_EPOCHS, max(LEAST_EPOCHS, wanted)):.1e}"))  # two digits


def _cpu_size(kind: type[Method], N: int, side: int, epochs: int, cores: int) -> int:
    multiple = 1 if kind in (MoCoV2, SimSiam) else 16  # patches of a transformer
    sizes = [size for size in MINUTES if size <= side] or [max(multiple, side // multiple * multiple)]
    fitting = [size for size in sizes if minutes(kind, N, size, epochs, cores) <= MINUTES.get(size, 60)]
    return fitting[0] if fitting else sizes[-1]


def _size_reason(kind: type[Method], N: int, side: int, epochs: int, cores: int, size: int) -> str:
    larger = [other for other in MINUTES if size < other <= side]
    if not larger:
        return f"the images have {side} px" if side < 96 else "the largest size on a CPU"
    needed = minutes(kind, N, larger[-1], epochs, cores)
    return f"{larger[-1]} px would take about {needed:,.0f} minutes"


def _batch(N: int, machine: Machine, per_image: float) -> tuple[int, str]:
    """A power of two: a sixteenth of the images, from 16 to 128, on a GPU 256, as far as images and memory allow."""
    most = 256 if machine.device == "cuda" else 128
    wanted = min(most, max(16, _power_of_two(N / 16)))
    room = 0.7 * machine.memory - (0 if machine.device == "cuda" else 1.2 * GB)  # Python and the reading processes
    fitting = max(4, _power_of_two(max(room, 1) / per_image))
    batch = min(wanted, fitting, _power_of_two(N))
    if batch == fitting < wanted:
        return batch, "as much as fits into memory"
    return batch, f"{N // batch:,} steps per epoch"


def _small_method(kind: type[Method], N: int, image_size: int, batch_size: int) -> Method:
    """The method of the small recipe, with a network for this image size and a queue for so many images."""
    arguments: dict[str, Any] = dict(read_options(RECIPES[kind])["method"]["init_args"])
    if "img_size" in arguments["backbone_args"]:
        arguments["backbone_args"] |= {"img_size": image_size, "patch_size": max(1, image_size // 16)}
    if "queue_length" in arguments:
        arguments["queue_length"] = _queue(N, batch_size, most=4096)
    return kind(**arguments)


def _gpu_method(kind: type[Method], N: int, batch_size: int) -> Method:
    """The paper's settings of a method; of MoCo v2 with a network and a queue for so many images."""
    if kind is not MoCoV2:
        return kind()
    few = N < LARGE_SET
    return MoCoV2(
        backbone=_gpu_backbone(N),
        queue_length=_queue(N, batch_size, most=65536),
        momentum=0.99 if few else 0.999,
        temperature=0.1 if few else 0.2,
        bn_splits=min(8, batch_size // 2),
    )


def _gpu_backbone(N: int) -> str:
    return "resnet18" if N < LARGE_SET else "resnet50"


def _gpu_size(kind: type[Method], side: int) -> int:
    if kind not in (MoCoV2, SimSiam, SwAV):
        return 224  # the size of their transformers
    return min(224, max(32, side // 32 * 32))


def _bytes(kind: type[Method], N: int, image_size: int) -> float:
    backbone = _gpu_backbone(N) if kind is MoCoV2 else "resnet50"
    views = 1 if kind is MoCoV2 else 2 if kind in (SimSiam, MoCoV3) else 4  # with gradients, at full size
    return GPU_BYTES[backbone] * views * (image_size / 224) ** 2


def _queue(N: int, batch_size: int, *, most: int) -> int:
    """A sixteenth of the images, as a long queue of a small set is full of other views of the same images."""
    return max(4 * batch_size, min(most, _power_of_two(N / 16)))


def _power_of_two(value: float) -> int:
    """The largest power of two up to `value`; at least 1."""
    return 1 << max(0, int(value).bit_length() - 1)
