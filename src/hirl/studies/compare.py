"""Base and HIRL arms side by side: trained from the same recipes and seeds, evaluated alike, in the paper's tables.

A comparison is a folder of runs. Finished runs are kept, so the same call continues after any stop. All arms of one
seed are equal to the bit until their first tree, so stage one is trained once, by the baseline.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from hirl.evals import find_evaluation
from hirl.evals.base import Evaluation
from hirl.evals.evaluate import evaluate
from hirl.evals.images import ImageRequest
from hirl.evals.labels import check_labels
from hirl.hierarchy.settings import Hierarchy
from hirl.runs.continuing import fork_file
from hirl.runs.folder import Run
from hirl.studies.arms import arm_folder, make_arms
from hirl.studies.comparison_plot import write_plots
from hirl.studies.comparison_tables import Figures, by_figure, numbers, pooled, running_time, side_by_side
from hirl.terminal.tables import Cells, print_tables, write_tables
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe
from hirl.train.settings import EPOCHS
from hirl.train.setup import check_image_count


def compare(
    data: Any,
    recipes: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    tasks: Sequence[str | Evaluation] = ("knn",),
    out: str | os.PathLike[str] = "comparison",
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    ablate: Mapping[str, Sequence[Any]] | None = None,
    evaluation_data: Any = None,
    test_data: Any = None,
    epochs: int | None = None,
    epochs_factor: float = 1.0,
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
        arms: {"paper": {"weight": 1}, "HIRL": {}}: arms of HIRL in place of the recipe's, by name, with the settings of
            the hierarchy that each changes; a setting of the tree builder is called builder.NAME.
        ablate: {"levels": [(300, 30), (300,)], "weight": [1, 10]}: further arms, one per value, which changes one
            setting each.
        evaluation_data: Data to evaluate on, if not those of pretraining: other images, or annotations for detection.
        test_data: Images to test on, if they are not another split of the data.
        epochs: Epochs for all recipes; by default those of each recipe. The tree starts at the same share of them.
        epochs_factor: Factor on each recipe's own epochs: a set of few images needs more of them.
        accelerator: Device to train on; by default a GPU if there is one.
        classes: Methods and tree builders outside hirl that recipes or arms name.
    """
    _check(recipes, seeds, tasks, epochs, epochs_factor)
    folder = Path(out)
    if folder.is_file():
        raise ValueError(f"out is {str(folder)!r}, which is a file: name a folder")
    images = Path(data).resolve() if isinstance(data, str | os.PathLike) else None
    if images is not None and images.is_dir() and folder.resolve().is_relative_to(images):
        raise ValueError(
            f"out is {str(folder)!r}, which is in the folder of the images: its plots would count as images, so name a "
            "folder elsewhere"
        )
    options = {name: recipe(name, classes=classes) for name in recipes}
    labels = _labels(options)
    options = {name: _with_length(given, epochs, epochs_factor) for name, given in options.items()}
    # All arms before the first is trained: a mistake in the last recipe is found at once.
    made = {name: make_arms(_hierarchy(name, options[name]), arms or {}, ablate or {}, classes) for name in recipes}
    _check_data(data, evaluation_data, test_data, tasks, options, made)
    figures: Figures = {}
    times: Figures = {}
    for name in recipes:
        label = labels[name]
        for seed in seeds:
            base: Run | None = None
            for arm, hierarchy in made[name].items():
                changed = {"seed": seed, "accelerator": accelerator}
                place = folder / f"{name.replace('/', '-')} {arm_folder(arm)} {seed}".replace(" ", "-")
                run = _trained(data, options[name] | changed, hierarchy, place, base, list(made[name].values()))
                base = run if hierarchy is None else base
                figures[label, arm, seed] = _evaluated(run, tasks, evaluation_data, test_data)
                times[label, arm, seed] = _seconds(run)
                tables = _write(folder, figures, times, list(seeds))  # so that one can look at what there is
    write_plots(folder, by_figure(figures, list(seeds)))
    print_tables(tables)
    return folder


def _trained(
    data: Any,
    options: Mapping[str, Any],
    hierarchy: Hierarchy | None,
    place: Path,
    base: Run | None,
    arms: Sequence[Hierarchy | None],
) -> Run:
    """Train one arm: the baseline keeps its states of all arms' first trees, and they start from it."""
    epochs = options["epochs"]
    more: dict[str, Any] = {}
    if hierarchy is None:
        more["fork_at"] = tuple(sorted({arm.start_for(epochs) for arm in arms if arm is not None}))
    elif base is not None and fork_file(base, hierarchy.start_for(epochs)) is not None:
        more["stage_one"] = base.folder
    method = options["method"]
    method = type(method)(**method.arguments)  # a method is built once
    return pretrain(data, **{**options, "method": method, "hierarchy": hierarchy, "out": place} | more)


def _write(folder: Path, figures: Figures, times: Figures, seeds: list[int]) -> dict[str, Cells]:
    tables = {"figures": side_by_side(figures, seeds), "running time": running_time(times, seeds)}
    if len({method for method, _, _ in figures}) > 1:
        tables["all methods"] = pooled(figures, seeds)
    write_tables(folder, tables, {"figures": numbers(figures, seeds)})
    return tables


def _check(
    recipes: Sequence[str],
    seeds: Sequence[int],
    tasks: Sequence[str | Evaluation],
    epochs: int | None,
    epochs_factor: float,
) -> None:
    for what, given in (("recipe", recipes), ("seed", seeds), ("task", [_name(task) for task in tasks])):
        if not given:
            raise ValueError(f"a comparison needs at least one {what}")
        if len(set(given)) < len(given):
            raise ValueError(f"the same {what} is named twice in {', '.join(map(str, given))}")
    if min(seeds) < 0:
        raise ValueError(f"seeds must be at least 0, not {min(seeds)}")
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    if not 0 < epochs_factor < math.inf:
        raise ValueError(f"epochs_factor must be a number above 0, not {epochs_factor}")
    if epochs is not None and epochs_factor != 1:
        raise ValueError("epochs and epochs_factor both set the number of epochs: give one of them")
    for task in tasks:
        if isinstance(task, str):
            find_evaluation(task)


def _check_data(
    data: Any,
    evaluation_data: Any,
    test_data: Any,
    tasks: Sequence[str | Evaluation],
    options: Mapping[str, Mapping[str, Any]],
    arms: Mapping[str, Mapping[str, Hierarchy | None]],
) -> None:
    """Check before the first run what would fail after hours: every arm's levels, and what each task is evaluated on.

    The images are opened as `pretrain` and `evaluate` will open them.
    """
    defaults = inspect.signature(pretrain).parameters
    for name, given in options.items():
        channels = given.get("channels", 3)
        request = ImageRequest(data, test_data, given.get("split"), None, channels)
        evaluated = request
        if evaluation_data is not None:
            evaluated = ImageRequest(evaluation_data, test_data, None, None, channels)
        _check_evaluated(tasks, evaluated)
        train = request.train()
        for arm, hierarchy in arms[name].items():
            length, batch = (given.get(key, defaults[key].default) for key in ("epochs", "batch_size"))
            try:
                check_image_count(train, hierarchy, batch_size=batch, epochs=length)
            except ValueError as error:
                raise ValueError(f"the arm {arm} of {name!r}: {error}") from error


def _check_evaluated(tasks: Sequence[str | Evaluation], request: ImageRequest) -> None:
    """Check that every task finds the images and labels it needs."""
    for asked in tasks:
        task = find_evaluation(asked)() if isinstance(asked, str) else asked
        try:
            parts = task.open_parts(request)
            if task.needs.labels:
                check_labels(parts)
            task.check(parts)
        except ValueError as error:
            raise ValueError(f"{task.name}: {error}") from error


def _labels(options: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The name of each recipe in the tables: its method, or the recipe's own name if two have the same method."""
    methods = {name: type(given["method"]).__name__ for name, given in options.items()}
    return {name: method if list(methods.values()).count(method) == 1 else name for name, method in methods.items()}


def _with_length(options: Mapping[str, Any], epochs: int | None, factor: float) -> dict[str, Any]:
    """A recipe's options for `epochs`, or `factor` times its own, with the first tree at the same share of them."""
    own: int = options.get("epochs", EPOCHS)
    length = max(1, round(own * factor)) if epochs is None else epochs
    hierarchy: Hierarchy | None = options["hierarchy"]
    return {
        **options,
        "epochs": length,
        "hierarchy": hierarchy and hierarchy.scaled(own, length),
    }


def _hierarchy(name: str, options: Mapping[str, Any]) -> Hierarchy:
    hierarchy: Hierarchy | None = options["hierarchy"]
    if hierarchy is None:
        raise ValueError(f"the recipe {name!r} has hierarchy null, but a comparison needs HIRL's settings")
    return hierarchy


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
    taken = {line["epoch"]: line["seconds_epoch"] for line in run.metrics() if "seconds_epoch" in line}
    first = start + (0 if hierarchy is None else 1)
    later = [seconds for epoch, seconds in taken.items() if epoch > first] or [*taken.values()][-1:]
    return {"seconds": median(later)} if later else {}
