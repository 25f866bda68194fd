"""Default settings of a run: method, image size, batch size and epochs that suit the images and the machine.

Pure functions of (number and size of the images, machine); each choice comes with its reason. The small networks and
their settings are those of the recipes in small/.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hirl.config import find_class, read_options
from hirl.encoders.backbones import has_tokens
from hirl.hierarchy.settings import EQ_4_WEIGHT
from hirl.methods import Method, MoCoV2
from hirl.methods.parts.set_size import LARGE_SET, power_of_two, queue_length
from hirl.methods.parts.split_batch_norm import fitting_groups
from hirl.recipes import recipe_names
from hirl.train.machine import GB, Machine

DEFAULT_METHOD: type[Method] = MoCoV2
WHY_DEFAULT = "the fastest method here"  # on a CPU
SMALL, PAPER = "small/", "imagenet/"  # folders of recipes

# On a CPU, the largest image size is chosen with which the run ends within this many minutes.
MAX_MINUTES = {96: 10, 64: 40, 32: 60}
# Milliseconds that an image takes on one core with small/moco_v2: reading a photo, and the network at 96 px. 1,500
# photos took 623 s for 100 epochs at 64 px on two cores (benchmarks.photos).
READING, NETWORK = 2.5, 13.0
SMALL_BYTES = 3e6  # memory per image of the small networks at 64 px
PATCHES = 16  # per side of an image, for small transformers
# Epochs: 100 for 1,500 images. The total number of images processed grows more slowly than their number.
EPOCHS, EPOCHS_AT, EPOCHS_POWER = 100, 1_500, 0.6
LEAST_EPOCHS, MOST_EPOCHS = 10.0, 200.0

# For a GPU.
GPU_BYTES = {"resnet18": 30e6, "resnet50": 110e6}  # memory per view at 224 px; other networks count as a ResNet-50
GPU_BATCH, CPU_BATCH = 256, 128  # largest batches


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run that are given, None for those to be chosen; and what shares a batch."""

    image_size: int | None = None
    batch_size: int | None = None
    epochs: int | None = None
    processes: int = 1
    accumulate: int = 1

    def shared(self, batch_size: int) -> int:
        """The batch size, rounded down so that the processes can share it equally; at least 2 images for each."""
        return batch_size if self.processes == 1 else max(2, batch_size // self.processes) * self.processes

    def grouped(self, arguments: dict[str, Any], batch_size: int) -> dict[str, Any]:
        """The arguments of a method, with `bn_splits`, if it has any, of what a forward pass gets."""
        if "bn_splits" not in arguments:
            return arguments
        most = arguments["bn_splits"]
        return arguments | {
            "bn_splits": fitting_groups(batch_size // self.accumulate, self.processes, most=most) or most
        }


@dataclass(frozen=True)
class Choices:
    """The chosen settings, and the reason for each, by name."""

    method: Method
    image_size: int
    batch_size: int
    epochs: int
    weight: float  # of L_SPD, by default
    reasons: dict[str, str] = field(default_factory=dict)


def choose(kind: type[Method], N: int, side: int, machine: Machine, sizes: Sizes = Sizes()) -> Choices:
    """Choose what is not given for N images, whose shorter side typically has `side` pixels.

    `kind` must have a recipe in small/.
    """
    image_size, batch_size, epochs = sizes.image_size, sizes.batch_size, sizes.epochs
    on_gpu = machine.device == "cuda"
    reasons: dict[str, str] = {}
    if epochs is None:
        epochs = _epochs(N)
        reasons["epochs"] = f"{epochs * N:,} images in all"
        if on_gpu:
            epochs = max(epochs, 50)
            reasons["epochs"] = "small sets get more epochs"
    if image_size is None and on_gpu:
        image_size = _gpu_size(kind, side)
        reasons["image_size"] = f"the images' {side} px, but at most 224"
    elif image_size is None:
        image_size, reasons["image_size"] = _cpu_size(kind, N, side, epochs, machine.cores)
        longest = MAX_MINUTES[min(MAX_MINUTES)]
        if "epochs" in reasons and minutes(kind, N, image_size, epochs, machine.cores) > longest:
            epochs = max(2, int(epochs * longest / minutes(kind, N, image_size, epochs, machine.cores)))
            reasons["epochs"] = f"as many as fit into an hour with {N:,} images"
    if batch_size is None:
        per_image = SMALL_BYTES * (image_size / 64) ** 2
        if on_gpu:
            per_image = gpu_bytes(kind, kind.for_images(N, GPU_BATCH).backbone, image_size)
        batch_size, reasons["batch_size"] = batch_that_fits(N, machine, per_image, sizes)
    if on_gpu:
        arguments, weight = kind.for_images(N, batch_size).arguments, EQ_4_WEIGHT
        reasons["backbone"] = f"for {'more' if N >= LARGE_SET else 'fewer'} than {LARGE_SET:,} images on a GPU"
        reasons["weight"] = "of HIRL's loss, as in the paper"
    else:
        arguments = _small_arguments(kind, N, image_size, batch_size)
        weight = float(small_options(kind)["hierarchy"]["weight"])
        reasons["backbone"] = "small, since there is no CUDA GPU"
        reasons["weight"] = f"of HIRL's loss, as in the recipe {small_recipe(kind)}"
    if kind is DEFAULT_METHOD:
        reasons["method"] = f"{WHY_DEFAULT}, for images of any size"
    method = kind(**sizes.grouped(arguments, batch_size))
    return Choices(method, image_size, batch_size, epochs, weight, reasons)


def minutes(kind: type[Method], N: int, image_size: int, epochs: int, cores: int) -> float:
    """Rough training time of a small network on a CPU. A run later measures its own speed over its first steps."""
    per_image = (READING + NETWORK * (image_size / 96) ** 2) * kind.facts.time
    return epochs * N * per_image / 1000 / cores / 60


def _epochs(N: int) -> int:
    wanted = EPOCHS * (EPOCHS_AT / N) ** EPOCHS_POWER
    return int(float(f"{min(MOST_EPOCHS, max(LEAST_EPOCHS, wanted)):.1e}"))  # two digits


def _cpu_size(kind: type[Method], N: int, side: int, epochs: int, cores: int) -> tuple[int, str]:
    multiple = PATCHES if _has_patches(small_options(kind)["method"]["init_args"]) else 1
    sizes = [size for size in MAX_MINUTES if size <= side] or [max(multiple, side // multiple * multiple)]
    fitting = [size for size in sizes if minutes(kind, N, size, epochs, cores) <= MAX_MINUTES.get(size, 60)]
    chosen = fitting[0] if fitting else sizes[-1]
    larger = [size for size in MAX_MINUTES if chosen < size <= side]
    if larger:
        needed = minutes(kind, N, larger[-1], epochs, cores)
        return chosen, f"{larger[-1]} px would take about {needed:,.0f} minutes"
    return chosen, f"the images have {side} px" if side < 96 else "the largest size on a CPU"


def batch_that_fits(N: int, machine: Machine, per_image: float, sizes: Sizes) -> tuple[int, str]:
    """Batch size and reason: a power of two near N/16, from 16 to 128 (GPU: 256), limited by images and memory."""
    most = GPU_BATCH if machine.device == "cuda" else CPU_BATCH
    wanted = min(most, max(16, power_of_two(N / 16)))
    room = 0.7 * machine.memory - (0 if machine.device == "cuda" else 1.2 * GB)  # Python and the reading processes
    fitting = max(4, power_of_two(max(room, 1) / per_image))
    batch = sizes.shared(min(wanted, fitting, power_of_two(N)))
    if fitting < wanted and batch <= fitting < 2 * batch:
        return batch, "the largest that fits into memory"
    return batch, f"{N // batch:,} steps per epoch"


def _small_arguments(kind: type[Method], N: int, image_size: int, batch_size: int) -> dict[str, Any]:
    """Those of the small recipe, with its network fitted to the image size and its queue to N."""
    arguments: dict[str, Any] = dict(small_options(kind)["method"]["init_args"])
    if _has_patches(arguments):
        if image_size % PATCHES:
            below = image_size // PATCHES * PATCHES
            raise ValueError(
                f"image_size is {image_size}, but must be a multiple of {PATCHES} for the network that is chosen for "
                f"{kind.__name__}: use {' or '.join(str(size) for size in (below, below + PATCHES) if size)}, or name "
                "another network with --method.backbone"
            )
        sizes = {"img_size": image_size, "patch_size": image_size // PATCHES}
        arguments["backbone_args"] = arguments["backbone_args"] | sizes
    if "queue_length" in arguments:
        arguments["queue_length"] = queue_length(N, batch_size, most=4096)
    return arguments


def small_recipe(kind: type[Method]) -> str | None:
    """The recipe of a method in small/, which is named like the method's file; None if there is none."""
    return recipe_of(kind, SMALL)


def recipe_of(kind: type[Method], folder: str) -> str | None:
    """The recipe in a folder that is named like the method's file; None if there is none for this class."""
    name = f"{folder}{kind.__module__.rpartition('.')[2]}"
    if name not in recipe_names() or find_class(read_options(name)["method"]["class_path"], Method) is not kind:
        return None
    return name


def small_options(kind: type[Method]) -> dict[str, Any]:
    recipe = small_recipe(kind)
    assert recipe is not None, kind
    return read_options(recipe)


def _has_patches(arguments: dict[str, Any]) -> bool:
    """Whether a recipe's network takes images of one size only."""
    return "img_size" in (arguments.get("backbone_args") or {})


def _gpu_size(kind: type[Method], side: int) -> int:
    if has_tokens(kind().backbone_outline):
        return 224  # the size of their transformers
    return min(224, max(32, side // 32 * 32))


def gpu_bytes(kind: type[Method], backbone: str, image_size: int) -> float:
    """Memory per image on a GPU."""
    per_view = GPU_BYTES.get(backbone, GPU_BYTES["resnet50"])
    return per_view * kind.facts.gradient_views * (image_size / 224) ** 2
