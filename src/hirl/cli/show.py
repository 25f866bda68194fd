"""A run folder as a page of text, and a list of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.runs.folder import Run
from hirl.runs.results import list_results
from hirl.terminal.figures import format_figure, with_kinds

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def show_run(run: Run) -> None:
    """What the run was told, how far it is, its figures and its losses drawn over time."""
    console = Console()
    config, lines = run.config, list(run.metrics())
    started = json.loads(run.about_file.read_text()) if run.about_file.is_file() else []
    console.print(
        f"[bold]{escape(str(run.folder))}[/bold]: {_state(run, config, lines)}", highlight=False, soft_wrap=True
    )
    for name in ("loss_image", "loss_spd"):
        values = [line[name] for line in lines if name in line]
        if any(values):
            console.print(
                f"{name:<12} {drawn(values)} {values[0]:.4f} → {values[-1]:.4f}", highlight=False, soft_wrap=True
            )
    figures = {
        name: value for line in lines for name, value in line.items() if name not in ("step", "epoch", "finished")
    }
    table = Table(title="last figures", title_justify="left", show_header=False)
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    if results := list_results(run.results_folder):
        console.print(_results_table(results))
    present = [
        file for file in (run.encoder_file, run.tree_file, run.checkpoint_file, run.skipped_file) if file.exists()
    ]
    console.print("files: " + ", ".join(file.name for file in present), highlight=False, soft_wrap=True)
    if started:
        versions = ", ".join(f"{name} {number}" for name, number in started[-1]["versions"].items())
        console.print(f"started {len(started)} time(s), last with {versions}", highlight=False, soft_wrap=True)
        console.print(escape("command: " + " ".join(started[-1]["command"])), highlight=False, soft_wrap=True)
    console.print(escape(yaml.safe_dump(config, sort_keys=False, allow_unicode=True)), highlight=False, soft_wrap=True)


def _results_table(results: dict[Path, dict[str, Any]]) -> Table:
    """A row per result: its file, the images it was tested on and its headline figures."""
    table = Table(title="results", title_justify="left")
    for heading in ("file", "tested on", "figures"):
        table.add_column(heading, overflow="fold")
    for file, result in results.items():
        tested = (result["protocol"].get("data") or {}).get("test") or {}
        figures = with_kinds(result["headline"], result["kinds"]["headline"])
        shown = "\n".join(f"{name} {format_figure(value)}" for name, value in figures.items())
        table.add_row(escape(file.name), escape(str(tested.get("name", ""))), escape(shown))
    return table


def list_runs(folder: Path) -> None:
    """A line a run below a folder."""
    runs = sorted({Run(file.parent).folder for file in folder.glob("**/config.yaml")})
    if not runs:
        raise ValueError(f"there is no run below {str(folder)!r}")
    table = Table(title=f"runs in {escape(str(folder))}", title_justify="left")
    for heading in ("run", "state", "loss_image", "loss_spd", "knn"):
        # Names go on in the next line rather than lose their ends, by which runs are told apart.
        table.add_column(heading, justify="left" if heading in ("run", "state") else "right", overflow="fold")
    for place in runs:
        run = Run(place)
        lines = list(run.metrics())
        last = [_last(lines, name) for name in ("loss_image", "loss_spd")]
        knn = _last(lines, "knn_level_0")
        shown = [(f"{value:.4f}" if value else "") for value in last] + ["" if knn is None else f"{knn:.1%}"]
        table.add_row(escape(str(place.relative_to(folder))), _state(run, run.config, lines), *shown)
    Console().print(table)


def _state(run: Run, config: dict[str, Any], lines: Sequence[dict[str, Any]]) -> str:
    arm = "baseline" if config.get("hierarchy") is None else "HIRL"
    method = config["method"]["class_path"].rsplit(".", 1)[-1]
    epoch = max((line["epoch"] for line in lines), default=0)
    state = "finished" if run.finished else "unfinished"
    return f"{method}, {arm}, {state}, epoch {epoch:.4g} of {config['epochs']}"


def _last(lines: Sequence[dict[str, Any]], name: str) -> float | None:
    return next((line[name] for line in reversed(lines) if name in line), None)


def drawn(values: Sequence[float]) -> str:
    """A line of blocks, the lowest value the lowest block."""
    if len(values) > WIDTH:
        edges = [round(place * len(values) / WIDTH) for place in range(WIDTH + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS)))] for value in values)
