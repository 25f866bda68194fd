"""The settings of a run, resolved once: those given, else those of the run that is continued, else chosen.

Every default is decided here, or for images and machine in `defaults`; what travels on has nothing left open.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from hirl.config.parser import load
from hirl.data.sources import Skipped
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.skipped import read_or_replace
from hirl.encoders.last_blocks import Blocks
from hirl.features.open_encoder import Encoder
from hirl.hierarchy.levels import Levels, levels_by_number
from hirl.hierarchy.settings import EQ_4_WEIGHT, Hierarchy, ResolvedHierarchy
from hirl.methods.base import Method
from hirl.methods.foreign_state import ForeignState
from hirl.processes import Precision
from hirl.run import Run
from hirl.train.defaults import LARGER, Choices, choose, choose_adaptation, choose_continuation
from hirl.train.machine import read_machine

MEASURED = 16  # images whose size is looked at
NEIGHBOURS = 0.5  # of HIRL on a frozen encoder, docs/log.md
EPOCHS, BATCH_SIZE = 100, 256  # of a method that was given with all its arguments


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that decides the result of a run, with nothing left open: what config.yaml holds."""

    data: str
    method: Method
    hierarchy: ResolvedHierarchy | None
    epochs: int
    batch_size: int
    image_size: int
    seed: int
    split: str | None
    channels: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    precision: Precision
    accumulate: int
    encoder: str | None
    cached_views: int
    neighbours: float
    unfreeze: Blocks


def resolve(
    run: Run,
    images: ImageSet,
    method: Method | type[Method],
    hierarchy: Hierarchy | None,
    start: Encoder | None,
    heads: ForeignState | None,
    *,
    epochs: int | None,
    batch_size: int | None,
    image_size: int | None,
    unfreeze: Blocks,
    accelerator: str,
    skipped: Skipped,
) -> tuple[Choices, ResolvedHierarchy | None, str]:
    """Fill in what is not given; also return what to print about it, "" if nothing was chosen.

    `method` is a class if its arguments, too, are to be chosen: for `start`, which then stays frozen, for `heads`, with
    which it goes on, or from nothing.
    """
    N = len(images)
    if isinstance(method, Method):
        epochs = EPOCHS if epochs is None else epochs
        if image_size is None and start is not None and (method.is_adapted or unfreeze):
            image_size = start.size_for(typical_side(images, skipped))
        image_size = images.default_size if image_size is None else image_size
        batch_size = min(BATCH_SIZE, N) if batch_size is None else batch_size
        own = hierarchy_defaults(method, unfreeze) | ({} if heads is None and not unfreeze else {"start_share": 0.0})
        resolved = None if hierarchy is None else hierarchy.resolve(N, epochs, **own)
        return Choices(method, image_size, batch_size, epochs, EQ_4_WEIGHT), resolved, ""
    earlier = earlier_settings(run, method)
    given = {"epochs": epochs, "batch_size": batch_size, "image_size": image_size}
    if earlier is not None:
        found = Choices(
            earlier.method,
            earlier.image_size if image_size is None else image_size,
            earlier.batch_size if batch_size is None else batch_size,
            earlier.epochs if epochs is None else epochs,
            EQ_4_WEIGHT if earlier.hierarchy is None else earlier.hierarchy.weight,
        )
    else:
        side = typical_side(images, skipped)
        about = f"chosen for {N:,} images of about {side} px"
        if start is None:
            machine = read_machine(accelerator)
            found = choose(method, N, side, machine, **given)
            about += f" and {machine}:"
        else:
            if heads is None:
                found = choose_adaptation(method, N, side, start, unfreeze, **given)
            else:
                found = choose_continuation(method, N, side, start, heads, read_machine(accelerator), **given)
            about += f", starting from {start.name}:"
    resolved = None
    if hierarchy is not None:
        # From nothing, the first tree comes after half of the epochs, as in the recipes of small/.
        share = 0.5 if start is None else 0.0
        own = hierarchy_defaults(found.method, unfreeze)
        resolved = hierarchy.resolve(N, found.epochs, start_share=share, weight=found.weight, **own)
    suggested = None if hierarchy is None or hierarchy.levels is not None else levels_by_number(N)
    rows = _rows(found, resolved, suggested)
    summary = f"settings as in {run.config_file}" if earlier else "\n".join((about, *rows))
    return found, resolved, summary


def hierarchy_defaults(method: Method, unfreeze: Blocks = 0) -> dict[str, Any]:
    """What `Hierarchy.resolve` takes for settings that are left open: where an image's leaf and features come from."""
    strong = method.is_adapted or bool(unfreeze)  # the encoder: its features are better than z⁰ of new heads
    return {
        "assign": "step" if method.facts.online_assignment else "stored",
        "features": "pass" if strong else "bank",
        "head_layers": 0 if strong else 2,
    }


def default_neighbours(method: Method, hierarchy: ResolvedHierarchy | None) -> float:
    """The share of images that are paired with a neighbour if the settings leave it open."""
    return NEIGHBOURS if method.is_adapted and hierarchy is not None and hierarchy.head_layers == 0 else 0.0


def typical_side(images: ImageSet, skipped: Skipped) -> int:
    """The median of the shorter sides of some images, spread over the set."""
    if images.pixels is not None:
        return int(min(images.pixels.shape[-2:]))
    count = min(MEASURED, len(images))
    places = [place * len(images) // count for place in range(count)]
    sides = [min(read_or_replace(images, place, skipped=skipped)[0].shape[-2:]) for place in places]
    return int(statistics.median_low(sides))


def earlier_settings(run: Run, method: type[Method]) -> Settings | None:
    """The settings of the run in the folder if it can be continued: free memory may have changed since."""
    if not run.exists or not (run.checkpoint_file.is_file() or run.saved):
        return None
    settings = Settings(**load(Settings, run.config, source=str(run.config_file), classes=[method]))
    return settings if type(settings.method) is method else None


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
            reasons["first tree"] = "over the features that it starts with"
        if hierarchy.weight == found.weight:
            values["weight"] = f"{found.weight:g}"
    width = max(map(len, values.values()))
    rows = [f"  {name:<11} {values[name]:<{width}}  {reasons[name]}" for name in values if name in reasons]
    return [*rows, f"  Options on the command line replace these; --config {LARGER} has the paper's, made for GPUs."]
