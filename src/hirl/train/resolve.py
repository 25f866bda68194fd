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
from hirl.train.adaptation_defaults import choose_adaptation, choose_continuation
from hirl.train.defaults import PAPER, Choices, Sizes, choose, recipe_of
from hirl.train.machine import read_machine
from hirl.train.settings import GivenSettings, Settings, earlier_settings
from hirl.train.start import Start
from hirl.train.training_images import TrainingImages

NEIGHBOURS = 0.5  # for HIRL on a frozen encoder, as measured in docs/log.md
EPOCHS, BATCH_SIZE = 100, 256  # for a method that is given with its arguments
# T₁ as a share of the epochs: as in the recipes of small/, and 0 where features are informative already
SCRATCH_START_SHARE, TRAINED_START_SHARE = 0.5, 0.0
SIZES = ("image_size", "batch_size", "epochs")


def resolve(
    given: GivenSettings, data: TrainingImages, start: Start | None, run: Run, accelerator: str, processes: int = 1
) -> tuple[Settings, str]:
    """Fill in the settings that are not given; also return a summary to print, "" if nothing was chosen."""
    N, kind = len(data), given.method
    chosen_for, summary = "", ""
    share = SCRATCH_START_SHARE if start is None else TRAINED_START_SHARE
    if isinstance(kind, Method):
        choices = _with_arguments(given, kind, data, start)
        share = start_share(given.unfreeze, with_heads=start is not None and start.heads is not None)
    elif (earlier := earlier_settings(run, kind)) is not None:
        weight = EQ_4_WEIGHT if earlier.hierarchy is None else earlier.hierarchy.weight
        choices = Choices(earlier.method, earlier.image_size, earlier.batch_size, earlier.epochs, weight)
        summary = f"settings as in {run.config_file}"
    else:
        choices, chosen_for = _chosen(given, kind, data, start, accelerator, processes)
    choices = replace(choices, **{name: size for name in SIZES if (size := getattr(given, name)) is not None})
    hierarchy = None
    if given.hierarchy is not None:
        defaults = hierarchy_defaults(choices.method, given.unfreeze, weight=choices.weight, start_share=share)
        hierarchy = given.hierarchy.resolve(N, choices.epochs, defaults)
    if chosen_for:
        suggested = None if given.hierarchy is None or given.hierarchy.levels is not None else levels_by_number(N)
        summary = "\n".join((chosen_for, *_rows(choices, hierarchy, suggested)))
    resolved: dict[str, Any] = {"data": data.place, "method": choices.method, "hierarchy": hierarchy}
    resolved |= {name: getattr(choices, name) for name in SIZES}
    resolved["encoder"] = None if start is None else start.source
    if start is not None:
        resolved |= {"mean": given.mean or start.encoder.mean, "std": given.std or start.encoder.std}
    resolved["neighbours"] = neighbours_of(given.neighbours, choices.method, hierarchy)
    return Settings(**vars(given) | resolved), summary


def _with_arguments(given: GivenSettings, method: Method, data: TrainingImages, start: Start | None) -> Choices:
    """The choices for a method that is given with its arguments."""
    size = data.images.default_size
    if given.image_size is None and start is not None and (method.has_adapter or given.unfreeze):
        size = start.encoder.size_for(_side_for_start(given, data))
    return Choices(method, size, min(BATCH_SIZE, len(data)), EPOCHS, EQ_4_WEIGHT)


def _chosen(
    given: GivenSettings,
    kind: type[Method],
    data: TrainingImages,
    start: Start | None,
    accelerator: str,
    processes: int,
) -> tuple[Choices, str]:
    """Choices for a method without arguments, and a line that says what they were chosen for.

    The encoder of `start` stays frozen, or if its heads are loaded too, all of it trains.
    """
    N, side = len(data), data.typical_side()
    sizes = Sizes(given.image_size, given.batch_size, given.epochs, processes, given.accumulate)
    about = f"chosen for {N:,} images of about {side} px"
    if start is None:
        machine = read_machine(accelerator)
        return choose(kind, N, side, machine, sizes), f"{about} and {machine}:"
    if start.heads is None:
        side = _side_for_start(given, data)
        choices = choose_adaptation(kind, N, side, start.encoder, given.unfreeze, sizes)
    else:
        choices = choose_continuation(kind, N, side, start.encoder, start.heads, read_machine(accelerator), sizes)
    return choices, f"{about}, starting from {start.encoder.name}:"


def _side_for_start(given: GivenSettings, data: TrainingImages) -> int:
    """The side of the images to compare with the start's own input size.

    A frozen encoder processes each image only a few times, so images are as large as on a page without a run: smaller
    ones would make the run's tree worse than that page's. Blocks that train process all images in every epoch.
    """
    return data.typical_side() if given.unfreeze else data.images.pretrained_size


def start_share(unfreeze: Blocks, *, with_heads: bool) -> float:
    """The share of the epochs before the first tree: none if the network, or its heads, are trained already."""
    return TRAINED_START_SHARE if unfreeze or with_heads else HierarchyDefaults.start_share


def neighbours_of(given: float | None, method: Method, hierarchy: ResolvedHierarchy | None) -> float:
    """The share of positives from neighbours: as given, or the default with a frozen encoder and HIRL without heads."""
    if given is not None:
        return given
    return NEIGHBOURS if method.has_adapter and hierarchy is not None and hierarchy.head_layers == 0 else 0.0


def hierarchy_defaults(
    method: Method,
    unfreeze: Blocks = 0,
    *,
    weight: float = HierarchyDefaults.weight,
    start_share: float = HierarchyDefaults.start_share,
) -> HierarchyDefaults:
    """HIRL's defaults for a method: weight and first tree as chosen, and where leaves and features come from."""
    defaults = HierarchyDefaults(weight=weight, start_share=start_share)
    if method.facts.online_assignment:
        defaults = replace(defaults, assign="step")
    if method.has_adapter or unfreeze:  # features of a trained encoder are better than z⁰ of new heads
        defaults = replace(defaults, features="pass", head_layers=0)
    return defaults


def _rows(choices: Choices, hierarchy: ResolvedHierarchy | None, suggested: Levels | None) -> list[str]:
    """A line for each choice: its name, its value and the reason."""
    method = choices.method
    values = {"method": type(method).__name__, "backbone": method.backbone, "image_size": f"{choices.image_size} px"}
    values |= {"batch_size": str(choices.batch_size), "epochs": str(choices.epochs)}
    reasons = dict(choices.reasons)
    if hierarchy is not None:
        values |= {"levels": ", ".join(map(str, hierarchy.levels)), "first tree": f"epoch {hierarchy.start_epoch}"}
        if suggested is not None:
            reasons["levels"] = suggested.why
        reasons["first tree"] = "an earlier tree, over uninformative features, would hurt training"
        if hierarchy.start_epoch == 0:
            reasons["first tree"] = "the features of the start are informative already"
        if hierarchy.weight == choices.weight:
            values["weight"] = f"{choices.weight:g}"
    width = max(map(len, values.values()))
    rows = [f"  {name:<11} {values[name]:<{width}}  {reasons[name]}" for name in values if name in reasons]
    paper = recipe_of(type(method), PAPER)
    published = "" if paper is None else f"; --config {paper} has the paper's settings, for GPUs"
    return [*rows, f"  Command-line options override these{published}."]
