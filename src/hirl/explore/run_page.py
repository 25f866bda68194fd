"""Pages of a run: its curves over the epochs with its warnings, and a frame for its start beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from hirl.explore.page import check_page_folder, page_folder, write_page
from hirl.runs.folder import RunFolder
from hirl.runs.metrics import METRICS, Chart, figures_of, find_metric
from hirl.terminal.figures import Kind

POINTS = 600  # per curve; longer curves are averaged
START, ADAPTED = "start", "adapted"  # folders of two pages within that of the page which shows both


def write_sides_page(run: RunFolder, folder: Path, what: str) -> None:
    """Write `folder`/index.html, which shows the pages in its folders start/ and adapted/; `what`: kind of page."""
    check_page_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = run.folder.resolve().name
    figures = {figure: [f"{one:.3f}" for one in both] for figure, both in (run.adaptation or {}).items()}
    sides = [
        {"name": "The start", "about": str(run.origin or ""), "page": f"{START}/index.html"},
        {"name": "After adaptation", "about": name, "page": f"{ADAPTED}/index.html"},
    ]
    data = {"title": f"{name} · {what}", "sides": sides, "figures": figures, "sheets": None}
    write_page(folder, "sides", f"{name} · {what} of the start and after adaptation", data)


def write_run_page(run: RunFolder, folder: Path, *, state: str, results: Mapping[str, Mapping[str, str]]) -> None:
    """Write the page to `folder`/index.html; `results` are figures as text by name of their result."""
    lines = list(run.metrics())
    curves = run_curves(lines)
    data = {
        "title": run.folder.resolve().name,
        "state": state,
        "start": f"Started from {run.origin or 'nothing (random weights)'}",
        "adaptation": {name: [f"{figure:.3f}" for figure in both] for name, both in (run.adaptation or {}).items()},
        "epochs": max((line["epoch"] for line in lines), default=0),
        "charts": [
            {
                "title": chart.title,
                "about": "; ".join(dict.fromkeys(find_metric(name).about for name in found)),
                "share": all(find_metric(name).kind is Kind.SHARE for name in found),
                "zero": chart.from_zero,
                "curves": found,
            }
            for chart, found in arrange(curves).items()
        ],
        "warnings": run_warnings(run),
        "results": {name: dict(figures) for name, figures in results.items()},
        "config": yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True),
        "sheets": None,
    }
    with page_folder(folder) as aside:
        write_page(aside, "curves", f"{run.folder.resolve().name} · run", data)


def run_curves(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """The epochs and values of every reported figure, without those that are NaN or infinite."""
    curves: dict[str, list[list[float]]] = {}
    for line in lines:
        for name, value in figures_of(line).items():
            if isfinite(value):
                curve = curves.setdefault(name, [[], []])
                curve[0].append(float(line["epoch"]))
                curve[1].append(float(value))
    return {name: _thinned(curve) for name, curve in curves.items()}


def arrange(curves: Mapping[str, list[list[float]]]) -> dict[Chart, dict[str, list[list[float]]]]:
    """Charts with their curves, in the order of METRICS; those of the method's own figures come last."""
    own = [find_metric(name) for name in curves if find_metric(name) not in METRICS]
    charts = {metric.chart: dict[str, list[list[float]]]() for metric in (*METRICS, *own) if metric.chart is not None}
    for name, curve in curves.items():
        if (chart := find_metric(name).chart) is not None:
            charts[chart][name] = curve
    return {chart: found for chart, found in charts.items() if found}


def run_warnings(run: RunFolder) -> list[dict[str, Any]]:
    """Each warning once, with its number of occurrences and the time of the last."""
    found: dict[str, dict[str, Any]] = {}
    if run.log_file.is_file():
        for line in run.log_file.read_text(encoding="utf-8", errors="replace").splitlines():
            when, _, message = line.partition("  ")
            if message.startswith("warning: "):
                text = message.removeprefix("warning: ")
                kind = re.sub(r"[\d.,]+%?", "#", text)  # groups warnings that differ only in numbers
                found[kind] = {"text": text, "when": when, "count": found.get(kind, {"count": 0})["count"] + 1}
    return list(found.values())


def _thinned(curve: list[list[float]]) -> list[list[float]]:
    """At most POINTS points, each the mean of consecutive ones."""
    count = min(POINTS, len(curve[0]))
    edges = [round(place * len(curve[0]) / count) for place in range(count + 1)]
    means = [[sum(part[a:b]) / (b - a) for a, b in pairwise(edges)] for part in curve]
    return [[round(epoch, 4) for epoch in means[0]], [float(f"{value:.6g}") for value in means[1]]]
