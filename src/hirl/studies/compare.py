"""Base and HIRL arms side by side: trained from the same recipes and seeds, evaluated alike, in the paper's tables.

A comparison is a folder of runs. What is done in it is not done again, so the same call continues after any stop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from hirl.evals.evaluate import evaluate
from hirl.hierarchy.settings import Hierarchy
from hirl.recipes import recipe
from hirl.runs.folder import Run
from hirl.terminal.figures import format_figure, kind_of
from hirl.terminal.tables import Cells, print_tables, write_tables
from hirl.train.pretrain import pretrain

BASE, HIRL = "base", "HIRL"
ABLATED = ("levels", "negatives")
Values = Mapping[str, float]  # figure → value
Figures = dict[tuple[str, str, int], Values]  # method, arm, seed


def compare(
    data: Any,
    recipes: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    tasks: Sequence[str] = ("knn",),
    out: str | os.PathLike[str] = "comparison",
    ablate: Mapping[str, Sequence[Any]] | None = None,
    test_data: Any = None,
    epochs: int | None = None,
    accelerator: str = "auto",
) -> Path:
    """Trains and evaluates every arm of every recipe with every seed, and gives the folder of runs and tables.

    data     the images, labelled, as `hirl.pretrain` takes them
    recipes  names of shipped recipes, or YAML files
    seeds    each is a pair of runs: differences are taken within pairs
    tasks    evaluations, as `hirl.evaluate` takes them
    ablate   {"levels": [(300, 30), (300,)]} or {"negatives": [100, 1000]}: HIRL's arm in each of these ways instead
    epochs   for all recipes, where it is not their own that are wanted; the tree keeps its place among them
    """
    _check(recipes, seeds, tasks, ablate or {})
    folder = Path(out)
    labels = _labels(recipes)
    arms = {name: _arms(_hierarchy(name, epochs), ablate or {}) for name in recipes}  # all, before the first is trained
    figures: Figures = {}
    times: Figures = {}
    for name in recipes:
        method = labels[name]
        for seed in seeds:
            for arm, hierarchy in arms[name].items():
                options = recipe(name)  # a method is built once
                told = {"hierarchy": hierarchy, "seed": seed, "accelerator": accelerator}
                told |= {} if epochs is None else {"epochs": epochs}
                place = folder / f"{name.replace('/', '-')} {arm} {seed}".replace(" ", "-")
                run = pretrain(data, **options | told, out=place)
                figures[method, arm, seed] = _evaluated(run, tasks, test_data)
                times[method, arm, seed] = _seconds(run)
                # After each run, so that one can look at what there is.
                tables = {
                    "figures": _side_by_side(figures, list(seeds)),
                    "running time": _running_time(times, list(seeds)),
                }
                write_tables(folder, tables)
    print_tables(tables)
    return folder


def _check(
    recipes: Sequence[str], seeds: Sequence[int], tasks: Sequence[str], ablate: Mapping[str, Sequence[Any]]
) -> None:
    from hirl.evals import find_evaluation

    for what, given in (("recipe", recipes), ("seed", seeds), ("task", tasks)):
        if not given:
            raise ValueError(f"a comparison needs at least one {what}")
        if len(set(given)) < len(given):
            raise ValueError(f"the same {what} is named twice in {', '.join(map(str, given))}")
    for task in tasks:
        find_evaluation(task)
    for name in ablate:
        if name not in ABLATED:
            raise ValueError(f"ablate knows {' and '.join(ABLATED)}, not {name!r}")


def _labels(recipes: Sequence[str]) -> dict[str, str]:
    """What stands for a recipe in the tables: its method, or its own name where two have the same."""
    methods = {name: type(recipe(name)["method"]).__name__ for name in recipes}
    return {name: method if list(methods.values()).count(method) == 1 else name for name, method in methods.items()}


def _hierarchy(name: str, epochs: int | None) -> Hierarchy:
    options = recipe(name)
    hierarchy: Hierarchy | None = options["hierarchy"]
    if hierarchy is None:
        raise ValueError(f"the recipe {name!r} has hierarchy null, but it is HIRL that its baseline is compared with")
    if epochs is None or hierarchy.start_epoch is None or "epochs" not in options:
        return hierarchy
    return replace(hierarchy, start_epoch=max(1, hierarchy.start_epoch * epochs // options["epochs"]))


def _arms(hierarchy: Hierarchy, ablate: Mapping[str, Sequence[Any]]) -> dict[str, Hierarchy | None]:
    if not ablate:
        return {BASE: None, HIRL: hierarchy}
    arms: dict[str, Hierarchy | None] = {BASE: None}
    for name, values in ablate.items():
        for value in values:
            shown = "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            arms[f"{name}={shown}"] = replace(hierarchy, **{name: value})
    return arms


def _evaluated(run: Run, tasks: Sequence[str], test_data: Any) -> dict[str, float]:
    """The headline figures of all tasks; those already stored for the same protocol are not computed again."""
    results = evaluate(run, *tasks, test_data=test_data, reuse=True)
    return {f"{task}, {name}": value for task, found in results.items() for name, value in found.headline.items()}


def _seconds(run: Run) -> dict[str, float]:
    """The median time of an epoch; with HIRL of those in stage two but the first, whose tree has no warm start."""
    config = run.config
    hierarchy = config["hierarchy"]
    start = 0 if hierarchy is None else Hierarchy(start_epoch=hierarchy["start_epoch"]).start_for(config["epochs"])
    taken = [line["seconds_epoch"] for line in run.metrics() if "seconds_epoch" in line and line["epoch"] > start]
    return {"seconds": median(taken)} if taken else {}


def _names(figures: Figures) -> tuple[list[str], list[str]]:
    methods = list(dict.fromkeys(method for method, _, _ in figures))
    return methods, [arm for arm in dict.fromkeys(arm for _, arm, _ in figures) if arm != BASE]


def _side_by_side(figures: Figures, seeds: list[int]) -> Cells:
    """A row for each method and figure; an arm's column is followed by its difference from the base."""
    methods, arms = _names(figures)
    heading = ["method", "figure", BASE]
    for arm in arms:
        heading += [arm, "difference"]
    rows = []
    for method in methods:
        for name in dict.fromkeys(name for (one, _, _), values in figures.items() if one == method for name in values):
            base = _column(figures, method, BASE, seeds, name)
            row = [method, name, _mean(base)]
            for arm in arms:
                values = _column(figures, method, arm, seeds, name)
                row += [_mean(values), _difference(base, values)]
            rows.append(row)
    return [heading, *rows]


def _column(figures: Figures, method: str, arm: str, seeds: list[int], name: str) -> dict[int, float]:
    found = {seed: figures.get((method, arm, seed), {}) for seed in seeds}
    return {seed: values[name] for seed, values in found.items() if name in values}


def _mean(values: dict[int, float]) -> str:
    """The mean over seeds, by the figures' kind and without its unit: a share as 25.60."""
    if not values:
        return ""
    return format_figure(mean(values.values()), kind_of(next(iter(values.values()))), unit=False)


def _difference(base: dict[int, float], values: dict[int, float]) -> str:
    """The mean over pairs of runs of one seed, with its standard error where there are two or more."""
    pairs = [values[seed] - base[seed] for seed in values if seed in base]
    if not pairs:
        return ""
    kind = kind_of(next(iter(values.values())))
    found = format_figure(mean(pairs), kind, sign=True, unit=False)
    if len(pairs) == 1:
        return found
    return f"{found} ± {format_figure(stdev(pairs) / len(pairs) ** 0.5, kind, unit=False)}"


def _running_time(times: Figures, seeds: list[int]) -> Cells:
    methods, arms = _names(times)
    rows = []
    for method in methods:
        base = _column(times, method, BASE, seeds, "seconds")
        for arm in arms:
            values = _column(times, method, arm, seeds, "seconds")
            if base and values:
                ours, theirs = mean(values.values()), mean(base.values())
                rows.append([method, arm, f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}×"])
    return [["method", "arm", "seconds of a base epoch", "of a stage-two epoch", "ratio"], *rows]
