"""The page of a run: its losses, representations, accuracies and trees over the epochs, and its warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from hirl.explore.page import page_folder, write_page
from hirl.runs.folder import Run

POINTS = 600  # per curve; more of them are averaged
NOT_CURVES = {"step", "epoch", "finished", "seconds_epoch", "seconds_features", "seconds_kmeans", "seconds_agreement"}


@dataclass(frozen=True)
class Chart:
    """Curves that share a scale: those whose names match; shares are shown in per cent."""

    title: str
    names: str  # a regular expression
    about: str = ""
    share: bool = False
    from_zero: bool = False


CHARTS = (
    Chart("Losses", r"loss_(image|spd)", "L_img of the method, and L_SPD from the first tree on"),
    Chart("KNN accuracy", r"knn_level_\d+", "on the val split, by level of the labels; level 0 is the finest", True),
    Chart("Effective rank", r"effective_rank", "dimensions that z⁰ uses; near 1 all images look alike", from_zero=True),
    Chart("Spread of z⁰", r"feature_std", "1: spread evenly over the sphere; near 0: collapsed", from_zero=True),
    Chart("Gradients", r"gradient_(image|spd)", "length of the gradient of L_img and of L_SPD at z⁰", from_zero=True),
    Chart("Gradient cosine", r"gradient_cosine", "1: both losses pull z⁰ in one direction; −1: in opposite ones"),
    Chart("Views", r"view_agreement.*", "share of images whose two views have the same leaf, or coarsest node", True),
    Chart("Moved leaves", r"moved_leaves", "share of images whose leaf is another one than an epoch before", True),
    Chart("Purity", r"purity_\d+", "share of images of their node's most frequent class, by level of the tree", True),
    Chart("Bank", r"bank_agreement.*", "share of images whose stored feature finds the node of the clean image", True),
    Chart(
        "Leaves", r"assignment_entropy|one_image_leaves", "evenness of their sizes, and leaves of a single image", True
    ),
    Chart("Largest nodes", r"largest_node_\d+", "share of all images in the largest node of each level", True),
    Chart("Learning rate", r"lr", from_zero=True),
    Chart("Images per second", r"images_per_second", from_zero=True),
    Chart("Waiting for data", r"waiting_for_data", share=True),
)


def write_run_page(run: Run, folder: Path, *, state: str, results: Mapping[str, Mapping[str, str]]) -> None:
    """Writes the page to `folder`/index.html; `results` are figures as text by name of their result."""
    lines = list(run.metrics())
    curves = run_curves(lines)
    data = {
        "title": run.folder.resolve().name,
        "state": state,
        "epochs": max((line["epoch"] for line in lines), default=0),
        "charts": [
            {"title": chart.title, "about": chart.about, "share": chart.share, "zero": chart.from_zero, "curves": found}
            for chart, found in arrange(curves)
        ],
        "warnings": run_warnings(run),
        "results": {name: dict(figures) for name, figures in results.items()},
        "config": yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True),
        "sheets": None,
    }
    with page_folder(folder) as aside:
        write_page(aside, "curves", f"{run.folder.resolve().name} · run", data)


def run_curves(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """For every figure that was reported: its epochs and its values."""
    curves: dict[str, list[list[float]]] = {}
    for line in lines:
        for name, value in line.items():
            if name not in NOT_CURVES and isinstance(value, int | float) and not isinstance(value, bool):
                if name == "loss_spd" and value == 0:  # before the first tree
                    continue
                curve = curves.setdefault(name, [[], []])
                curve[0].append(float(line["epoch"]))
                curve[1].append(float(value))
    return {name: _thinned(curve) for name, curve in curves.items()}


def arrange(curves: Mapping[str, list[list[float]]]) -> list[tuple[Chart, dict[str, list[list[float]]]]]:
    """Charts with their curves; a figure that belongs to none of them gets one of its own."""
    left = dict(curves)
    arranged = []
    for chart in CHARTS:
        found = {name: left.pop(name) for name in list(left) if re.fullmatch(chart.names, name)}
        if found:
            arranged.append((chart, found))
    return arranged + [(Chart(name, re.escape(name)), {name: curve}) for name, curve in left.items()]


def run_warnings(run: Run) -> list[dict[str, Any]]:
    """Each warning once, with how often it was given and the time of the last."""
    found: dict[str, dict[str, Any]] = {}
    if run.log_file.is_file():
        for line in run.log_file.read_text(encoding="utf-8", errors="replace").splitlines():
            when, _, message = line.partition("  ")
            if message.startswith("warning: "):
                text = message.removeprefix("warning: ")
                kind = re.sub(r"[\d.,]+%?", "#", text)  # the same warning with other numbers
                found[kind] = {"text": text, "when": when, "count": found.get(kind, {"count": 0})["count"] + 1}
    return list(found.values())


def _thinned(curve: list[list[float]]) -> list[list[float]]:
    """At most POINTS points, each the mean of those it stands for."""
    epochs, values = curve
    if len(epochs) <= POINTS:
        return [[round(epoch, 4) for epoch in epochs], [float(f"{value:.6g}") for value in values]]
    edges = [round(place * len(epochs) / POINTS) for place in range(POINTS + 1)]
    parts = [slice(a, b) for a, b in pairwise(edges) if b > a]
    means = [[sum(part[cut]) / (cut.stop - cut.start) for cut in parts] for part in (epochs, values)]
    return [[round(epoch, 4) for epoch in means[0]], [float(f"{value:.6g}") for value in means[1]]]
