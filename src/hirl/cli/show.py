"""`hirl show`: a run as a page of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.cli.collection import page_address
from hirl.cli.command import Command
from hirl.runs.faults import find_faults
from hirl.runs.folder import Run
from hirl.runs.results import list_results
from hirl.runs.state import run_state
from hirl.terminal.figures import format_figure, with_kinds

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def show_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="A run folder.")
    parser.add_argument(
        "--page", action="store_true", help="Write a page with curves to page/ in the run folder instead."
    )


def show(config: Namespace) -> None:
    run = Run(config.run)
    if config.page:
        write_page(run)
    else:
        show_run(run)


def write_page(run: Run) -> None:
    """Write the run's curves, warnings, results and configuration as a page."""
    from hirl.explore.run_page import write_run_page

    results = {
        file.name: {
            name: format_figure(value)
            for name, value in with_kinds(result["headline"], result["kinds"]["headline"]).items()
        }
        for file, result in list_results(run.results_folder).items()
    }
    folder = run.folder / "page"
    write_run_page(run, folder, state=run_state(run, list(run.metrics())), results=results)
    print(f"Page written to {folder}. {page_address(folder)}")


def show_run(run: Run) -> None:
    """Print the state of a run, its losses over time, its last figures, its files and its configuration."""
    console = Console()
    config, lines = run.config, list(run.metrics())
    started = run.starts()
    console.print(f"[bold]{escape(str(run.folder))}[/bold]: {run_state(run, lines)}", highlight=False, soft_wrap=True)
    if faults := find_faults(run):
        console.print(escape(f"broken: {', '.join(faults)}"), style="yellow", highlight=False, soft_wrap=True)
    for name in ("loss_image", "loss_spd"):
        if losses := loss_course(lines, name):
            console.print(
                f"{name:<12} {sparkline(losses.values)} {losses.first:.4f} → {losses.last:.4f}",
                highlight=False,
                soft_wrap=True,
            )
    figures = {
        name: value
        for line in lines
        for name, value in line.items()
        if name not in ("step", "epoch", "finished", "saved")
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
    present += sorted(run.checkpoints_folder.glob("*.ckpt"))
    console.print(
        "files: " + ", ".join(str(file.relative_to(run.folder)) for file in present), highlight=False, soft_wrap=True
    )
    if run.resolved:
        resolved = ", ".join(f"{name} {value}" for name, value in run.resolved.items())
        console.print(escape(f"resolved: {resolved}"), highlight=False, soft_wrap=True)
    if started and {"versions", "command"} <= started[-1].keys():
        versions = ", ".join(f"{name} {number}" for name, number in started[-1]["versions"].items())
        console.print(f"started {len(started)} time(s), last with {versions}", highlight=False, soft_wrap=True)
        console.print(escape("command: " + " ".join(started[-1]["command"])), highlight=False, soft_wrap=True)
    console.print(escape(yaml.safe_dump(config, sort_keys=False, allow_unicode=True)), highlight=False, soft_wrap=True)


class LossCourse(NamedTuple):
    """A loss over time, and its means over the first and the last epoch that has it."""

    values: list[float]
    first: float
    last: float


def loss_course(lines: Sequence[dict[str, Any]], name: str) -> LossCourse | None:
    """The course of a loss; None if there is none, or if it was always 0, as L_SPD is before the first tree.

    The first epoch is one value, its mean: a contrastive loss begins low, while a queue is still empty.
    """
    epochs: dict[int, list[tuple[float, int]]] = {}  # (loss, steps) per report, by epoch
    done = 0
    for line in lines:
        if isinstance(line.get(name), float):
            if line[name] != 0:
                epochs.setdefault(math.ceil(line["epoch"]), []).append((line[name], max(1, line["step"] - done)))
            done = line["step"]
    if not epochs:
        return None
    means = [
        sum(loss * steps for loss, steps in reports) / sum(steps for _, steps in reports)
        for reports in (epochs[min(epochs)], epochs[max(epochs)])
    ]
    first, *later = ([loss for loss, _ in reports] for reports in epochs.values())
    return LossCourse([means[0], *chain(*later)] if later else first, *means)


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


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of blocks, the lowest value as the lowest block."""
    if len(values) > WIDTH:
        edges = [round(place * len(values) / WIDTH) for place in range(WIDTH + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS)))] for value in values)


SHOW = Command("show", "show a run as a page of text, or of curves", show_options, show)
