"""The settings of a run: those given, else those of the run that is continued, else chosen for images and machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from hirl.data.sources import Skipped
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.skipped import read_or_replace
from hirl.hierarchy.levels import suggest_levels
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import SwAV
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.train.defaults import LARGER, Choices, choose
from hirl.train.machine import read_machine

MEASURED = 16  # images whose size is looked at
EPOCHS, BATCH_SIZE = 100, 256  # of a method that was given with all its arguments


@dataclass(frozen=True)
class Settings:
    """The settings, and what to print about those that were chosen; "" if there are none."""

    method: Method
    hierarchy: Hierarchy | None
    epochs: int
    batch_size: int
    image_size: int
    summary: str = ""


def settle(
    run: Run,
    images: ImageSet,
    method: Method | type[Method],
    hierarchy: Hierarchy | None,
    *,
    epochs: int | None,
    batch_size: int | None,
    image_size: int | None,
    accelerator: str,
    skipped: Skipped,
) -> Settings:
    """Fill in what is not given. `method` is a class if its arguments, too, are to be chosen."""
    given = {"epochs": epochs, "batch_size": batch_size, "image_size": image_size}
    if hierarchy is not None and hierarchy.assign is None:
        of_swav = issubclass(method if isinstance(method, type) else type(method), SwAV)
        hierarchy = replace(hierarchy, assign="step" if of_swav else "stored")
    if isinstance(method, Method):
        return Settings(
            method,
            hierarchy,
            EPOCHS if epochs is None else epochs,
            min(BATCH_SIZE, len(images)) if batch_size is None else batch_size,
            images.default_size if image_size is None else image_size,
        )
    earlier = _earlier(run, method)
    if earlier is not None:
        numbers = {name: earlier[name] if value is None else value for name, value in given.items()}
        weight = earlier["hierarchy"].weight_or_one if earlier["hierarchy"] else 1.0
        found = Choices(earlier["method"], numbers["image_size"], numbers["batch_size"], numbers["epochs"], weight)
    else:
        machine = read_machine(accelerator)
        side = typical_side(images, skipped)
        found = choose(method, len(images), side, machine, **given)
        about = f"chosen for {len(images):,} images of about {side} px and {machine}:"
    if hierarchy is not None:
        hierarchy = _fitted(hierarchy, found)
    summary = f"settings as in {run.config_file}" if earlier else "\n".join((about, *_rows(found, hierarchy, images)))
    return Settings(found.method, hierarchy, found.epochs, found.batch_size, found.image_size, summary)


def typical_side(images: ImageSet, skipped: Skipped) -> int:
    """The median of the shorter sides of some images, spread over the set."""
    if images.pixels is not None:
        return int(min(images.pixels.shape[-2:]))
    count = min(MEASURED, len(images))
    places = [place * len(images) // count for place in range(count)]
    sides = [min(read_or_replace(images, place, skipped=skipped)[0].shape[-2:]) for place in places]
    return int(statistics.median_low(sides))


def _earlier(run: Run, method: type[Method]) -> dict[str, Any] | None:
    """The arguments of the run in the folder if it can be continued: free memory may have changed since."""
    from hirl.config.load import load
    from hirl.train.pretrain import pretrain

    if not run.exists or not (run.checkpoint_file.is_file() or run.saved):
        return None
    options = load(pretrain, run.config, source=str(run.config_file), classes=[method], skip={"data"})
    return options if type(options["method"]) is method else None


def _fitted(hierarchy: Hierarchy, found: Choices) -> Hierarchy:
    """HIRL's settings for short runs, as in the recipes of small/, where they are not given."""
    if hierarchy.start_epoch is None:
        hierarchy = replace(hierarchy, start_epoch=max(1, found.epochs // 2))
    return hierarchy if hierarchy.weight is not None else replace(hierarchy, weight=found.weight)


def _rows(found: Choices, hierarchy: Hierarchy | None, images: ImageSet) -> list[str]:
    """A line for each choice: its name, its value and the reason."""
    method = found.method
    values = {"method": type(method).__name__, "backbone": method.backbone, "image_size": f"{found.image_size} px"}
    values |= {"batch_size": str(found.batch_size), "epochs": str(found.epochs)}
    reasons = dict(found.reasons)
    if hierarchy is not None:
        levels = hierarchy.levels_for(len(images))
        values |= {"levels": ", ".join(map(str, levels)), "first tree": f"epoch {hierarchy.start_epoch}"}
        if hierarchy.levels is None:
            reasons["levels"] = suggest_levels(len(images)).why
        reasons["first tree"] = "an earlier tree, over uninformative features, would hurt training"
        if hierarchy.weight == found.weight:
            values["weight"] = f"{found.weight:g}"
    width = max(map(len, values.values()))
    rows = [f"  {name:<11} {values[name]:<{width}}  {reasons[name]}" for name in values if name in reasons]
    return [*rows, f"  Options on the command line replace these; --config {LARGER} has the paper's, made for GPUs."]
