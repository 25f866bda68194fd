"""Base and HIRL arms side by side: trained from the same recipes and seeds, evaluated alike, in the paper's tables.

A comparison is a folder of runs. Finished runs are kept, so the same call continues after any stop. All arms of one
seed are equal to the bit until their first tree, so stage one is trained once, by the baseline; not if an arm pairs
neighbours and the baseline does not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Literal

from hirl.config import class_path, to_plain
from hirl.evals.base import Evaluation
from hirl.evals.evaluate import evaluate
from hirl.hierarchy.settings import ResolvedHierarchy
from hirl.processes import count_processes
from hirl.run import Run
from hirl.runs.continuing import fork_file
from hirl.runs.metrics import SECONDS_EPOCH
from hirl.studies.arms import BASE, arm_folder, check_folder, next_arms
from hirl.studies.comparison_plot import write_plots
from hirl.studies.comparison_settings import check_comparison, checked_images, resolved_arms, with_length
from hirl.studies.comparison_tables import Figures, by_figure, numbers, pooled, running_time, side_by_side
from hirl.terminal.tables import Cells, print_tables, write_tables
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe
from hirl.train.resolve import neighbours_of


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
    check_comparison(recipes, seeds, tasks, epochs, epochs_factor)
    folder = Path(out)
    images = Path(data).resolve() if isinstance(data, str | os.PathLike) else None
    if images is not None and images.is_dir() and folder.resolve().is_relative_to(images):
        raise ValueError(
            f"out is {str(folder)!r}, which is in the folder of the images: its plots would count as images, so name a "
            "folder elsewhere"
        )
    check_folder(folder)
    options = {name: recipe(name, classes=classes) for name in recipes}
    labels = _labels(options)
    options = {name: with_length(given, epochs, epochs_factor) for name, given in options.items()}
    made = {}
    for name in recipes:
        if options[name]["hierarchy"] is None:
            raise ValueError(f"the recipe {name!r} has hierarchy null, but must have HIRL's settings for a comparison")
        trained_on = checked_images(data, evaluation_data, test_data, tasks, options[name])
        made[name] = resolved_arms(name, options[name], trained_on, arms or {}, ablate or {}, classes)
    names = _folder_names(recipes, folder)
    every = {
        f"{names[name]} {arm_folder(arm)} {seed}".replace(" ", "-"): (name, arm, seed)
        for name in recipes
        for seed in seeds
        for arm in made[name]
    }
    keys = {place: (labels[name], arm, seed) for place, (name, arm, seed) in every.items()}
    figures: Figures = {}
    times: Figures = {}
    named = [task if isinstance(task, str) else (class_path(type(task)), to_plain(task.arguments)) for task in tasks]
    asked = hashlib.sha256(repr((named, evaluation_data, test_data)).encode()).hexdigest()[:8]
    processes = max(
        count_processes(accelerator, devices=given.get("devices", "auto"), nodes=given.get("nodes", 1))
        for given in options.values()
    )

    def is_done(place: str) -> bool:
        return (folder / f".{place}.{asked}").exists()

    def finish(place: str) -> None:
        """Train and evaluate an arm, or read what was kept of it."""
        name, arm, seed = every[place]
        given = {**options[name], "seed": seed, "accelerator": accelerator}
        base = next(Run(folder / one) for one, key in every.items() if key == (name, BASE, seed))
        run = _trained(data, given, made[name][arm], folder / place, base, list(made[name].values()))
        # Results already stored for the same protocol are not computed again.
        results = evaluate(run, *tasks, data=evaluation_data, test_data=test_data, reuse=True)
        figures[keys[place]] = {
            f"{task}, {figure}": value for task, found in results.items() for figure, value in found.headline.items()
        }
        times[keys[place]] = epoch_times(run)

    with closing(next_arms(list(every), folder, is_done, processes=processes)) as places:
        for place in places:
            finish(place)
            (folder / f".{place}.{asked}").touch()
            known = {key: value for key, value in figures.items() if (key[0], BASE, key[2]) in figures}
            if known:  # so that one can look at what there is
                _write(folder, known, {key: times[key] for key in known}, list(seeds))
    for place in every:  # those of other processes or an earlier call
        if keys[place] not in figures:
            finish(place)
    figures, times = ({key: found[key] for key in keys.values()} for found in (figures, times))
    tables = _write(folder, figures, times, list(seeds))
    write_plots(folder, by_figure(figures, list(seeds)))
    print_tables(tables)
    return folder


def _trained(
    data: Any,
    options: Mapping[str, Any],
    hierarchy: ResolvedHierarchy | None,
    place: Path,
    base: Run,
    arms: Sequence[ResolvedHierarchy | None],
) -> Run:
    """Train one arm: the baseline keeps its states of all arms' first trees, and they start from it."""
    more: dict[str, Any] = {}

    def neighbours(arm: ResolvedHierarchy | None) -> float:
        return neighbours_of(options.get("neighbours"), options["method"], arm)

    if hierarchy is None:
        later = {arm.start_epoch for arm in arms if arm is not None and neighbours(arm) == neighbours(None)}
        more["fork_at"] = tuple(sorted(later - {0}))
    # With other neighbours the baseline's first epochs are not those of this arm.
    elif neighbours(hierarchy) == neighbours(None) and fork_file(base, hierarchy.start_epoch):
        more["stage_one"] = base.folder
    method = options["method"].unbuilt_copy()
    return pretrain(data, **{**options, "method": method, "hierarchy": hierarchy, "out": place} | more)


def _write(folder: Path, figures: Figures, times: Figures, seeds: list[int]) -> dict[str, Cells]:
    tables = {"figures": side_by_side(figures, seeds), "running time": running_time(times, seeds)}
    if len({method for method, _, _ in figures}) > 1:
        tables["all methods"] = pooled(figures, seeds)
    write_tables(folder, tables, {"figures": numbers(figures, seeds)})
    return tables


def _labels(options: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The name of each recipe in the tables: its method, or the recipe's own name if two have the same method."""
    methods = {name: type(given["method"]).__name__ for name, given in options.items()}
    return {name: method if list(methods.values()).count(method) == 1 else name for name, method in methods.items()}


def _folder_names(recipes: Sequence[str], folder: Path) -> dict[str, str]:
    """How the folders of each recipe's runs begin: a file's name without its ending, unless two would be the same.

    The whole path if runs of that name are there, from an earlier version.
    """
    full = {name: name.replace("/", "-") for name in recipes}
    short = {name: Path(name).stem if Path(name).suffix in (".yaml", ".yml") else kept for name, kept in full.items()}
    taken, there = list(short.values()), [place.name for place in folder.iterdir()] if folder.is_dir() else []

    def has_runs(name: str) -> bool:
        return any(place.startswith(f"{name}-".replace(" ", "-")) for place in there)

    return {name: full[name] if taken.count(kept) > 1 or has_runs(full[name]) else kept for name, kept in short.items()}


def epoch_times(run: Run) -> dict[str, float]:
    """The median time of an epoch and of how many; with HIRL of those in stage two but the first.

    The tree of that one has no warm start: its time is taken if there is no other, but it does not count.
    """
    config = run.config
    hierarchy = config["hierarchy"]
    start = 0 if hierarchy is None else hierarchy["start_epoch"]
    name = SECONDS_EPOCH.name
    taken = {line["epoch"]: line[name] for line in run.metrics() if name in line}
    first = start + (0 if hierarchy is None else 1)
    later = [seconds for epoch, seconds in taken.items() if epoch > first]
    return {"seconds": median(later or [*taken.values()][-1:]), "epochs": len(later)} if taken else {}
