"""Resolves the settings of a run: as given, else as in the run that is continued, else chosen.

Every default is decided here or, if it depends on images and machine, in `defaults`; the result has no gaps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hirl.encoders.last_blocks import Blocks
from hirl.hierarchy.levels import Levels, levels_by_number
from hirl.hierarchy.settings import EQ_4_WEIGHT, HierarchyDefaults, ResolvedHierarchy
from hirl.methods.base import Method
from hirl.run import Run
from hirl.train.defaults import LARGER, Choices, choose, choose_adaptation, choose_continuation
from hirl.train.machine import read_machine
from hirl.train.settings import GivenSettings, Settings, earlier_settings
from hirl.train.start import Start
from hirl.train.training_images import TrainingImages

NEIGHBOURS = 0.5  # for HIRL on a frozen encoder, as measured in docs/log.md
EPOCHS, BATCH_SIZE = 100, 256  # for a method that is given with its arguments


def resolve(
    given: GivenSettings, data: TrainingImages, start: Start | None, run: Run, accelerator: str
) -> tuple[Settings, str]:
    """Fill in the settings that are not given; also return a summary to print, "" if nothing was chosen."""
    N, kind = len(data), given.method
    defaults, chosen_for, summary = HierarchyDefaults(), "", ""
    if isinstance(kind, Method):
        found = _with_arguments(given, kind, data, start)
        if given.unfreeze or (start is not None and start.heads is not None):
            defaults = replace(defaults, start_share=0.0)
    else:
        # From scratch, the first tree is built after half of the epochs, as in the recipes of small/.
        defaults = replace(defaults, start_share=0.5 if start is None else 0.0)
        earlier = earlier_settings(run, kind)
        if earlier is not None:
            found, summary = _as_earlier(given, earlier), f"settings as in {run.config_file}"
        else:
            found, chosen_for = _chosen(given, kind, data, start, accelerator)
    defaults = hierarchy_defaults(found.method, given.unfreeze, replace(defaults, weight=found.weight))
    hierarchy = None if given.hierarchy is None else given.hierarchy.resolve(N, found.epochs, defaults)
    if chosen_for:
        suggested = None if given.hierarchy is None or given.hierarchy.levels is not None else levels_by_number(N)
        summary = "\n".join((chosen_for, *_rows(found, hierarchy, suggested)))
    return _settings(given, found, hierarchy, data, start), summary


def _with_arguments(given: GivenSettings, method: Method, data: TrainingImages, start: Start | None) -> Choices:
    """The choices for a method that is given with its arguments."""
    size = data.images.default_size
    if given.image_size is None and start is not None and (method.is_adapted or given.unfreeze):
        size = start.encoder.size_for(_side_for_start(given, data))
    return _filled(given, Choices(method, size, min(BATCH_SIZE, len(data)), EPOCHS, EQ_4_WEIGHT))


def _as_earlier(given: GivenSettings, earlier: Settings) -> Choices:
    """The choices that the run made when it began."""
    weight = EQ_4_WEIGHT if earlier.hierarchy is None else earlier.hierarchy.weight
    return _filled(given, Choices(earlier.method, earlier.image_size, earlier.batch_size, earlier.epochs, weight))


def _filled(given: GivenSettings, usual: Choices) -> Choices:
    """The given settings, with gaps filled from `usual`."""
    sizes = {name: getattr(given, name) for name in ("image_size", "batch_size", "epochs")}
    return replace(usual, **{name: size for name, size in sizes.items() if size is not None})


def _chosen(
    given: GivenSettings, kind: type[Method], data: TrainingImages, start: Start | None, accelerator: str
) -> tuple[Choices, str]:
    """Choices for a method without arguments, and a line that says what they were chosen for.

    The encoder of `start` stays frozen, or if its heads are loaded too, all of it trains.
    """
    N, side = len(data), data.typical_side()
    sizes = {"image_size": given.image_size, "batch_size": given.batch_size, "epochs": given.epochs}
    about = f"chosen for {N:,} images of about {side} px"
    if start is None:
        machine = read_machine(accelerator)
        return choose(kind, N, side, machine, **sizes), f"{about} and {machine}:"
    if start.heads is None:
        found = choose_adaptation(kind, N, _side_for_start(given, data), start.encoder, given.unfreeze, **sizes)
    else:
        found = choose_continuation(kind, N, side, start.encoder, start.heads, read_machine(accelerator), **sizes)
    return found, f"{about}, starting from {start.encoder.name}:"


def _side_for_start(given: GivenSettings, data: TrainingImages) -> int:
    """The side of the images to compare with the start's own input size.

    A frozen encoder processes each image only a few times, so images are as large as on a page without a run: smaller
    ones would make the run's tree worse than that page's. Blocks that train process all images in every epoch.
    """
    return data.typical_side() if given.unfreeze else data.images.default_size


def _settings(
    given: GivenSettings,
    found: Choices,
    hierarchy: ResolvedHierarchy | None,
    data: TrainingImages,
    start: Start | None,
) -> Settings:
    resolved: dict[str, Any] = {
        "data": data.place,
        "method": found.method,
        "hierarchy": hierarchy,
        "epochs": found.epochs,
        "batch_size": found.batch_size,
        "image_size": found.image_size,
        "encoder": None if start is None else start.source,
    }
    if start is not None:
        resolved |= {"mean": given.mean or start.encoder.mean, "std": given.std or start.encoder.std}
    if given.neighbours is None:
        frozen = found.method.is_adapted and hierarchy is not None and hierarchy.head_layers == 0
        resolved["neighbours"] = NEIGHBOURS if frozen else 0.0
    return Settings(**vars(given) | resolved)


def hierarchy_defaults(
    method: Method,
    unfreeze: Blocks = 0,
    others: HierarchyDefaults = HierarchyDefaults(),  # noqa: B008 (frozen)
) -> HierarchyDefaults:
    """`others` with the defaults that depend on the method: where leaves and features come from, and the heads."""
    if method.facts.online_assignment:
        others = replace(others, assign="step")
    if method.is_adapted or unfreeze:  # features of a trained encoder are better than z⁰ of new heads
        others = replace(others, features="pass", head_layers=0)
    return others


def _rows(found: Choices, hierarchy: ResolvedHierarchy | None, suggested: Levels | None) -> list[str]:
    """A line for each choice: its name, its value and the reason."""
    method = found.method
    values = {"method": type(method).__name__, "backbone": method.backbone, "image_size": f"{found.image_size} px"}
    values |= {"batch_size": str(found.batch_size), "epochs": str(found.epochs)}
    reasons = dict(found.reasons)
    if hierarchy is not None:
        values |= {"levels": ", ".join(map(str, hierarchy.levels)), "first tree": f"epoch {hierarchy.start_epoch}"}
        if suggested is not None:
            reasons["levels"] = suggested.why
        reasons["first tree"] = "an earlier tree, over uninformative features, would hurt training"
        if hierarchy.start_epoch == 0:
            reasons["first tree"] = "the features of the start are informative already"
        if hierarchy.weight == found.weight:
            values["weight"] = f"{found.weight:g}"
    width = max(map(len, values.values()))
    rows = [f"  {name:<11} {values[name]:<{width}}  {reasons[name]}" for name in values if name in reasons]
    return [*rows, f"  Command-line options override these; --config {LARGER} has the paper's settings, for GPUs."]
