"""Checks of a run's arguments: method and hierarchy in all forms a user may give, numbers, and how they combine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, SupportsIndex, get_args

from hirl.config import find_class
from hirl.data.sources.image_set import ImageSet
from hirl.encoders.last_blocks import check_blocks
from hirl.hierarchy.settings import Hierarchy, ResolvedHierarchy
from hirl.methods.argument_ranges import check_ranges
from hirl.methods.base import Method
from hirl.processes import Precision
from hirl.runs.folder import folder_name
from hirl.train.defaults import DEFAULT_METHOD, small_recipe
from hirl.train.settings import GivenSettings, Settings


def find_method(method: Method | type[Method] | str | None) -> Method | type[Method]:
    """The given method, or its class if its arguments are to be chosen.

    None means the default method. A user's own class is used with its default arguments.
    """
    if isinstance(method, str):
        method = find_class(method, Method)
    method = DEFAULT_METHOD if method is None else method
    if isinstance(method, type) and issubclass(method, Method):
        if small_recipe(method):
            return method
        method = method()
    if not isinstance(method, Method):
        raise ValueError(f"method is {method!r}, but must be a method such as hirl.methods.DINO()")
    _ = method.arguments  # a ValueError if the constructor does not name them all
    return method


def as_hierarchy(hierarchy: Hierarchy | Mapping[str, Any] | None) -> Hierarchy | None:
    """HIRL's settings, given as such or as a dict; None is the baseline."""
    if isinstance(hierarchy, Mapping):
        try:
            hierarchy = Hierarchy(**hierarchy)
        except TypeError as error:
            names = ", ".join(field.name for field in fields(Hierarchy))
            raise ValueError(f"hierarchy has an unknown setting ({error}), but must have only {names}") from error
    if hierarchy is not None and not isinstance(hierarchy, Hierarchy):
        raise ValueError(f"hierarchy is {hierarchy!r}, but must be hirl.Hierarchy(...), or None for the baseline")
    return hierarchy


OPTIONAL = ("epochs", "batch_size", "image_size", "devices", "workers")  # may be None, for the default
MINIMA = dict.fromkeys(("seed", "keep_every", "knn_every", "checkpoint_minutes", "workers"), 0)
MINIMA |= {"batch_size": 2, "image_size": 8}  # losses compare images of a batch; networks downsample
MAXIMA = {"seed": 2**63 - 1}  # of torch's generators
CHOICES = {"precision": get_args(Precision), "accelerator": ("auto", "cpu", "cuda", "mps")}


def check_numbers(**numbers: Any) -> None:
    """Check the numbers that can be checked without the images: all are whole numbers except minutes."""
    for name, value in numbers.items():
        least = MINIMA.get(name, 1)
        if value is None and name in OPTIONAL:
            continue
        is_time = name.endswith("minutes")
        fits = isinstance(value, SupportsIndex) or (is_time and isinstance(value, float))
        if isinstance(value, bool) or not fits:
            noun = "a number" if is_time else "a whole number"
            raise ValueError(f"{name} is {value!r}, but must be {noun} of at least {least}")
        if not value >= least:  # also catches NaN
            raise ValueError(f"{name} is {value}, but must be at least {least}")
        if name in MAXIMA and value > MAXIMA[name]:
            raise ValueError(f"{name} is {value}, but must be at most {MAXIMA[name]}")


def check_out(out: str | os.PathLike[str] | None) -> None:
    """Refuse an empty text, such as an unset variable of a shell: as a path it would be the current folder."""
    if out is not None and not os.fspath(out):
        raise ValueError("out is '', but must be the path of a folder, or left out: the current folder is .")


def check_choices(**given: Any) -> None:
    for name, value in given.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(CHOICES[name])}")


def check_settings(
    settings: Settings,
    images: ImageSet,
    *,
    processes: int,
    stage_one: str | os.PathLike[str] | None,
    fork_at: Collection[int],
) -> None:
    """Check that the settings fit each other, the images, the processes, and a fork of stage one."""
    batch_size, accumulate = settings.batch_size, settings.accumulate
    if batch_size % accumulate:
        raise ValueError(f"accumulate is {accumulate}, but must divide the batch_size of {batch_size} into equal parts")
    divisor = accumulate * processes  # the processes share each part equally
    if batch_size % divisor:
        below = batch_size // divisor * divisor
        fitting = " or ".join(str(size) for size in (below, below + divisor) if size)
        of_parts = "" if accumulate == 1 else f"{divisor}, {accumulate} parts (--accumulate) on each of "
        raise ValueError(
            f"batch_size is {batch_size}, but must be a multiple of {of_parts}the {processes} processes (--devices, "
            f"--nodes): {fitting} would do"
        )
    check_ranges(settings.method)
    _check_adaptation(settings)
    hierarchy = settings.hierarchy
    if hierarchy is None and stage_one is not None:
        raise ValueError("--stage_one needs a hierarchy: a baseline has only one stage")
    if hierarchy is not None and fork_at:
        raise ValueError("--fork_at needs a baseline (--hierarchy null): HIRL starts from its states")
    if any(not 1 <= epoch < settings.epochs for epoch in fork_at):
        given = ", ".join(map(str, fork_at))
        raise ValueError(f"--fork_at is {given}, but must be epochs from 1 to {settings.epochs - 1}")
    check_sizes(images, hierarchy, batch_size=batch_size, epochs=settings.epochs)


def _check_adaptation(settings: Settings) -> None:
    if settings.cached_views < 2:
        raise ValueError(f"cached_views is {settings.cached_views}, but must be at least 2: methods compare views")
    if not 0 <= settings.neighbours <= 1:
        raise ValueError(f"neighbours is {settings.neighbours}, but must be a share of the images between 0 and 1")
    adapted = settings.method.has_adapter
    if adapted and settings.encoder is None:
        raise ValueError("backbone_args has an adapter but no encoder to adapt: give --encoder")
    if settings.neighbours and not adapted:
        raise ValueError("neighbours needs a frozen encoder: neighbours are found in its features")
    if settings.unfreeze and settings.encoder is None:
        raise ValueError(f"unfreeze is {settings.unfreeze}, but must be 0 without an --encoder to start from")
    if settings.unfreeze and adapted:
        raise ValueError(f"unfreeze is {settings.unfreeze}, but must be 0 with an adapter, whose encoder stays frozen")
    check_blocks(settings.method.backbone_outline, settings.unfreeze, name=settings.method.backbone)


def check_sizes(images: ImageSet, hierarchy: ResolvedHierarchy | None, *, batch_size: int | None, epochs: int) -> None:
    """Check that there are enough images for a batch, and enough epochs for a tree."""
    N = len(images)
    if batch_size is not None and batch_size > N:
        raise ValueError(f"batch_size is {batch_size}, but must be at most the {N} images of {images.name}")
    if hierarchy is not None and hierarchy.start_epoch > 0 and epochs < 2:
        raise ValueError(
            f"epochs is {epochs}, but must be at least 2 with a hierarchy, since the first epoch has no tree yet: use "
            "more --epochs, or --hierarchy null for a baseline"
        )
    if hierarchy is not None and hierarchy.start_epoch >= epochs:
        raise ValueError(
            f"hierarchy.start_epoch is {hierarchy.start_epoch}, but must be at most {epochs - 1} for {epochs} epochs: "
            "use more --epochs, an earlier --hierarchy.start_epoch, or --hierarchy null for a baseline"
        )


def default_run_folder(name: str, given: GivenSettings) -> str:
    """Return runs/DATA-METHOD-ARM-SEED for images of that name."""
    kind = type(given.method) if isinstance(given.method, Method) else given.method
    arm = "base" if given.hierarchy is None else "hirl"
    return f"runs/{folder_name(name)}-{kind.__name__.lower()}-{arm}-{given.seed}"
