"""Presents measured speeds as tables and as advice in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hirl.terminal.progress import duration_text
from hirl.terminal.tables import Cells
from hirl.train.machine import Machine, size_text
from hirl.train.memory import WARN
from hirl.train.speed import DATA, REFRESH, SPD, STAGES, Speed, TimedRecipe

MUCH_DATA = 0.25  # share of the time above which reading images or making views is reported as slow
GAIN = 1.05  # ratio of images per second above which a change of settings is advised


def variants(recipe: TimedRecipe, speed: Speed, N: int) -> dict[str, TimedRecipe]:
    """Variants of a recipe with one option changed, by option: changes that may be faster, and a larger image size."""
    batch, size = recipe.batch_size, recipe.image_size
    changed: dict[str, TimedRecipe] = {}
    for other in (batch // 2, batch * 2):
        if 2 <= other <= N:
            changed[f"--batch_size {other}"] = replace(recipe, batch_size=other)
    if "img_size" not in (getattr(recipe.method, "backbone_args", None) or {}):  # the network takes any size
        changed[f"--image_size {size * 2}"] = replace(recipe, image_size=size * 2)
    if recipe.precision == "32-true":
        changed["--precision bf16-mixed"] = replace(recipe, precision="bf16-mixed")
    if speed.workers:
        for workers in sorted({max(1, speed.workers // 2), speed.workers * 2}):
            changed[f"--workers {workers}"] = replace(recipe, workers=workers)
    return changed


def speed_table(speeds: Mapping[str, Speed], recipes: Mapping[str, TimedRecipe], N: int) -> Cells:
    """A row per recipe: its speed, the share of each stage, its memory, and the time of all its epochs on N images."""
    cells: Cells = [["recipe", "images/s", *STAGES, "memory", "all epochs"]]
    for name, speed in speeds.items():
        shares = [f"{speed.share(stage):.0%}" for stage in STAGES]
        need = "" if speed.need is None else size_text(speed.need.total)
        taken = duration_text(run_seconds(speed, recipes[name], N)).removeprefix("about ")
        cells.append([name, f"{speed.images_per_second:,.0f}", *shares, need, taken])
    return cells


def variant_table(speed: Speed, changed: Mapping[str, Speed]) -> Cells:
    """A row per change of the fastest recipe: its speed, and that relative to the recipe's."""
    cells: Cells = [["with", "images/s", "relative"]]
    for option, other in changed.items():
        relative = other.images_per_second / speed.images_per_second
        cells.append([option, f"{other.images_per_second:,.0f}", f"{relative:.2f} ×"])
    return cells


def run_seconds(speed: Speed, recipe: TimedRecipe, N: int) -> float:
    """Duration of a run of all epochs of a recipe on N images."""
    return float(recipe.epochs * N / speed.images_per_second)


def fastest(speeds: Mapping[str, Speed]) -> str:
    return max(speeds, key=lambda name: speeds[name].images_per_second)


def advice(
    speeds: Mapping[str, Speed],
    recipes: Mapping[str, TimedRecipe],
    changed: Mapping[str, Speed],
    machine: Machine,
    N: int,
) -> list[str]:
    """Sentences: which recipe, and whether another batch, image size, precision or number of workers would help."""
    name = fastest(speeds)
    speed, recipe = speeds[name], recipes[name]
    lines = [
        f"{name} is the fastest here: its {recipe.epochs} epochs of {N:,} images take "
        f"{duration_text(run_seconds(speed, recipe, N))}."
    ]
    lines += _memory(speeds, machine)
    lines += _batch(speed, changed)
    for option, other in changed.items():
        relative = other.images_per_second / speed.images_per_second
        if option.startswith("--image_size"):
            lines.append(f"{option} takes {1 / relative:.1f} times as long as {recipe.image_size} px.")
        if option.startswith("--precision"):
            faster = relative > GAIN
            lines.append(f"{option} is {relative:.2f} times as fast{': use it' if faster else ': not worth using'}.")
    lines += _data(speed, changed)
    shares = [one.share(SPD) + one.share(REFRESH) for one in speeds.values()]
    lines.append(
        f"HIRL's loss and its tree take {min(shares):.0%} to {max(shares):.0%} of the time, without the backward pass "
        "of its heads."
    )
    return lines


def _memory(speeds: Mapping[str, Speed], machine: Machine) -> list[str]:
    tight = [name for name, one in speeds.items() if one.need is not None and one.need.total > WARN * machine.free]
    if not tight:
        return []
    return [f"{size_text(machine.free)} of memory are free, too little for {', '.join(tight)}: use a smaller batch."]


def _batch(speed: Speed, changed: Mapping[str, Speed]) -> list[str]:
    sizes = {option: one for option, one in changed.items() if option.startswith("--batch_size")}
    if not sizes:
        return []
    best = max(sizes, key=lambda option: sizes[option].images_per_second)
    relative = sizes[best].images_per_second / speed.images_per_second
    if relative > GAIN:
        return [f"{best} is {relative:.2f} times as fast; scale --method.lr with it."]
    return ["Halving or doubling --batch_size does not help."]


def _data(speed: Speed, changed: Mapping[str, Speed]) -> list[str]:
    best = max(
        (option for option in changed if option.startswith("--workers")),
        key=lambda option: changed[option].images_per_second,
        default=None,
    )
    if best is not None and (relative := changed[best].images_per_second / speed.images_per_second) > GAIN:
        return [f"{best} is {relative:.2f} times as fast as the default of {speed.workers}."]
    if speed.share(DATA) < MUCH_DATA:
        return ["Training is limited by the network, not by reading images: more --workers would not help."]
    if speed.workers == 0:
        return [f"Making views takes {speed.share(DATA):.0%} of the time, on the same cores as the network."]
    return [
        f"Training waits for images {speed.share(DATA):.0%} of the time: copy them to a faster disk, or store them at "
        "the size that is needed."
    ]
