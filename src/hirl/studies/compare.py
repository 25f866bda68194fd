"""Base and HIRL arms side by side: trained from the same recipes and seeds, evaluated alike, in the paper's tables.

A comparison is a folder of runs. Finished runs are kept, so the same call continues after any stop.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Literal

from hirl.evals.base import Evaluation
from hirl.evals.evaluate import evaluate
from hirl.evals.images import ImageRequest
from hirl.hierarchy.settings import Hierarchy
from hirl.runs.folder import Run
from hirl.studies.comparison_plot import write_plot
from hirl.terminal.figures import format_figure, kind_of
from hirl.terminal.tables import Cells, Rows, print_tables, write_tables
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe
from hirl.train.setup import check_image_count

BASE, HIRL = "base", "HIRL"
ABLATED = ("levels", "negatives")
Values = Mapping[str, float]  # figure → value
Figures = dict[tuple[str, str, int], Values]  # method, arm, seed


def compare(
    data: Any,
    recipes: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    tasks: Sequence[str | Evaluation] = ("knn",),
    out: str | os.PathLike[str] = "comparison",
    ablate: Mapping[str, Sequence[Any]] | None = None,
    evaluation_data: Any = None,
    test_data: Any = None,
    epochs: int | None = None,
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    classes: Collection[type] = (),
) -> Path:
    """Train and evaluate every arm of every recipe with every seed; return the folder of runs and tables.

    Args:
        data: Labelled images, as `hirl.pretrain` takes them.
        recipes: Names of shipped recipes, or YAML files.
        seeds: Seeds; each gives a pair of runs, within which differences are taken.
        tasks: Evaluations, as `hirl.evaluate` takes them: names, or evaluations with arguments of their own.
        out: Folder for the runs and tables.
        ablate: {"levels": [(300, 30), (300,)]} or {"negatives": [100, 1000]}: arms of HIRL to compare instead of the
            recipe's.
        evaluation_data: Data to evaluate on, if not those of pretraining: other images, or annotations for detection.
        test_data: Images to test on, if they are not another part of the data.
        epochs: Epochs for all recipes; by default those of each recipe. The tree starts at the same share of them.
        accelerator: Device to train on; by default a GPU if there is one.
        classes: Methods and other classes outside hirl that the recipes name.
    """
    _check(recipes, seeds, [_name(task) for task in tasks], ablate or {}, epochs)
    folder = Path(out)
    if folder.is_file():
        raise ValueError(f"out is {str(folder)!r}, which is a file: name a folder")
    options = {name: recipe(name, classes=classes) for name in recipes}
    labels = _labels(options)
    # All arms before the first is trained: a mistake in the last recipe is found at once.
    arms = {name: _arms(_hierarchy(name, options[name], epochs), ablate or {}) for name in recipes}
    _check_data(data, test_data, options, arms, epochs)
    figures: Figures = {}
    times: Figures = {}
    for name in recipes:
        label = labels[name]
        for seed in seeds:
            for arm, hierarchy in arms[name].items():
                method = options[name]["method"]
                changed = {"method": type(method)(**method.arguments)}  # a method is built once
                changed |= {"hierarchy": hierarchy, "seed": seed, "accelerator": accelerator}
                changed |= {} if epochs is None else {"epochs": epochs}
                place = folder / f"{name.replace('/', '-')} {arm} {seed}".replace(" ", "-")
                run = pretrain(data, **options[name] | changed, out=place)
                figures[label, arm, seed] = _evaluated(run, tasks, evaluation_data, test_data)
                times[label, arm, seed] = _seconds(run)
                # After each run, so that one can look at what there is.
                tables = {
                    "figures": _side_by_side(figures, list(seeds)),
                    "running time": _running_time(times, list(seeds)),
                }
                write_tables(folder, tables, {"figures": _numbers(figures, list(seeds))})
    write_plot(folder, _by_figure(figures, list(seeds)))
    print_tables(tables)
    return folder


def _check(
    recipes: Sequence[str],
    seeds: Sequence[int],
    tasks: Sequence[str],
    ablate: Mapping[str, Sequence[Any]],
    epochs: int | None,
) -> None:
    from hirl.evals import find_evaluation

    for what, given in (("recipe", recipes), ("seed", seeds), ("task", tasks)):
        if not given:
            raise ValueError(f"a comparison needs at least one {what}")
        if len(set(given)) < len(given):
            raise ValueError(f"the same {what} is named twice in {', '.join(map(str, given))}")
    if min(seeds) < 0:
        raise ValueError(f"seeds must be at least 0, not {min(seeds)}")
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    for task in tasks:
        find_evaluation(task)
    for name in ablate:
        if name not in ABLATED:
            raise ValueError(f"ablate takes {' and '.join(ABLATED)}, not {name!r}")


def _check_data(
    data: Any,
    test_data: Any,
    options: Mapping[str, Mapping[str, Any]],
    arms: Mapping[str, Mapping[str, Hierarchy | None]],
    epochs: int | None,
) -> None:
    """Check before the first run what would fail after hours: the labels, the test part, every arm's levels."""
    defaults = inspect.signature(pretrain).parameters
    for name, given in options.items():
        request = ImageRequest(data, test_data, given.get("split"), None, given.get("channels", 3))
        for images in (train := request.train(), request.test()):
            if images.labels is None:
                raise ValueError(f"{images.name} has no labels, but a comparison evaluates with labels")
        for arm, hierarchy in arms[name].items():
            length, batch = (given.get(key, defaults[key].default) for key in ("epochs", "batch_size"))
            try:
                check_image_count(train, hierarchy, batch_size=batch, epochs=epochs or length)
            except ValueError as error:
                raise ValueError(f"the arm {arm} of {name!r}: {error}") from error


def _labels(options: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The name of each recipe in the tables: its method, or the recipe's own name if two have the same method."""
    methods = {name: type(given["method"]).__name__ for name, given in options.items()}
    return {name: method if list(methods.values()).count(method) == 1 else name for name, method in methods.items()}


def _hierarchy(name: str, options: Mapping[str, Any], epochs: int | None) -> Hierarchy:
    hierarchy: Hierarchy | None = options["hierarchy"]
    if hierarchy is None:
        raise ValueError(f"the recipe {name!r} has hierarchy null, but a comparison needs HIRL's settings")
    return hierarchy if epochs is None or "epochs" not in options else hierarchy.scaled(options["epochs"], epochs)


def _arms(hierarchy: Hierarchy, ablate: Mapping[str, Sequence[Any]]) -> dict[str, Hierarchy | None]:
    if not ablate:
        return {BASE: None, HIRL: hierarchy}
    arms: dict[str, Hierarchy | None] = {BASE: None}
    for name, values in ablate.items():
        for value in values:
            shown = "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            arms[f"{name}={shown}"] = replace(hierarchy, **{name: value})
    return arms


def _name(task: str | Evaluation) -> str:
    return task if isinstance(task, str) else task.name


def _evaluated(run: Run, tasks: Sequence[str | Evaluation], data: Any, test_data: Any) -> dict[str, float]:
    """The headline figures of all tasks; those already stored for the same protocol are not computed again."""
    results = evaluate(run, *tasks, data=data, test_data=test_data, reuse=True)
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
    """A row per method and figure; the column of each arm is followed by its difference from the base."""
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


def _numbers(figures: Figures, seeds: list[int]) -> Rows:
    """A row per method, figure and arm: the mean, the mean difference from the base with its s.e., every seed."""
    methods, arms = _names(figures)
    rows: Rows = [["method", "figure", "arm", "mean", "difference", "standard_error", *(f"seed_{n}" for n in seeds)]]
    for method in methods:
        for name in dict.fromkeys(name for (one, _, _), values in figures.items() if one == method for name in values):
            base = _column(figures, method, BASE, seeds, name)
            for arm in (BASE, *arms):
                values = _column(figures, method, arm, seeds, name)
                pairs = [values[seed] - base[seed] for seed in values if seed in base and arm != BASE]
                average = mean(values.values()) if values else ""
                error = stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else ""
                row = [method, name, arm, average, mean(pairs) if pairs else "", error]
                rows.append([*row, *(float(values[seed]) if seed in values else "" for seed in seeds)])
    return rows


def _by_figure(figures: Figures, seeds: list[int]) -> dict[str, dict[tuple[str, str], dict[int, float]]]:
    """By name of the figure, then by method and arm: its value for every seed."""
    names = dict.fromkeys(name for values in figures.values() for name in values)
    pairs = dict.fromkeys((method, arm) for method, arm, _ in figures)
    return {name: {pair: _column(figures, *pair, seeds, name) for pair in pairs} for name in names}


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
    return [["method", "arm", "seconds per base epoch", "per stage-two epoch", "ratio"], *rows]
