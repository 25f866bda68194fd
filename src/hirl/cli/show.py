"""`hirl show`: print or write a summary of a run: state, losses, results, files and configuration."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hirl.cli.collection import page_address
from hirl.cli.command import Command
from hirl.config.parser import Parser
from hirl.config.signatures import parameters
from hirl.runs.faults import find_faults
from hirl.runs.folder import RunFolder
from hirl.runs.metrics import LOSS_IMAGE, LOSS_SPD, last_figures, metric_values
from hirl.runs.results import distinguishing_settings, list_results, tested_on
from hirl.terminal.figures import format_figure, four_digits, with_kinds

BLOCKS, NOT_FINITE = "▁▂▃▄▅▆▇█", "×"
WIDTH = 60


def options(parser: Parser) -> None:
    parser.add_argument("run", type=Path, help="A run folder.")
    parser.add_argument(
        "--page", action="store_true", help="Write a page with curves to page/ in the run folder instead."
    )


def run(config: Namespace) -> None:
    (show_page if config.page else show_run)(RunFolder(config.run))


def show_page(run: RunFolder) -> None:
    """Write the run's curves, warnings, results and configuration as a page."""
    from hirl.explore.run_page import write_run_page

    found = list_results(run.results_folder)
    settings = distinguishing_settings(found)
    results = {
        f"{file.name} ({settings[file]})" if settings[file] else file.name: {
            name: format_figure(value)
            for name, value in with_kinds(result["headline"], result["kinds"]["headline"]).items()
        }
        for file, result in found.items()
    }
    folder = run.folder / "page"
    write_run_page(run, folder, state=run.state, results=results)
    print(f"Page written to {folder}. {page_address(folder)}")


def show_run(run: RunFolder) -> None:
    """Print the state of a run, its losses over time, its last figures, its files and its configuration."""
    console = Console()
    write = partial(console.print, highlight=False, soft_wrap=True)
    config, lines = run.config, list(run.metrics())
    started = run.launches()
    write(f"[bold]{escape(str(run.folder))}[/bold]: {run.state}")
    if faults := find_faults(run):
        write(escape(f"broken: {', '.join(faults)}"), style="yellow")
    for loss in (LOSS_IMAGE, LOSS_SPD):
        if values := metric_values(lines, loss):
            write(f"{loss.name:<12} {sparkline(values)} {' → '.join(map(four_digits, (values[0], values[-1])))}")
    write(escape(f"started from {run.origin or 'nothing (random weights)'}"))
    if figures := last_figures(lines):
        table = Table(title="last figures", title_justify="left", show_header=False)
        for name, value in figures.items():
            table.add_row(escape(name), format_figure(value))
        console.print(table)
    else:
        write("no figures yet")
    if sides := run.adaptation:
        from hirl.train.start_and_adapted import comparison_text

        write(escape(comparison_text(sides)))
    if results := list_results(run.results_folder):
        console.print(_results_table(results))
    files = (run.encoder_file, run.tree_file, run.checkpoint_file, run.start_file, run.adaptation_file)
    present = [file for file in (*files, run.skipped_file) if file.exists()]
    present += sorted(run.checkpoints_folder.glob("*.ckpt"))
    write(
        "files: " + (", ".join(str(file.relative_to(run.folder)) for file in present) or "none of a trained state yet")
    )
    if run.resolved:
        resolved = ", ".join(f"{name} {value}" for name, value in run.resolved.items())
        write(escape(f"resolved: {resolved}"))
    if started and {"versions", "command"} <= started[-1].keys():
        versions = ", ".join(f"{name} {number}" for name, number in started[-1]["versions"].items())
        write(f"started {'once' if len(started) == 1 else f'{len(started)} times, last'} with {versions}")
        write(escape("command: " + " ".join(started[-1]["command"])))
    write(escape(yaml.safe_dump(_in_order(config), sort_keys=False, allow_unicode=True)))


def _in_order(config: dict[str, Any]) -> dict[str, Any]:
    """The options as `hirl.pretrain` lists them, the data first."""
    from hirl.train.pretrain import pretrain

    return {name: config[name] for name in parameters(pretrain) if name in config} | config


def _results_table(results: dict[Path, dict[str, Any]]) -> Table:
    """A row per result: its file, the settings that distinguish it, its test images and its headline figures."""
    table = Table(title="results", title_justify="left")
    settings = distinguishing_settings(results)
    table.add_column("file", no_wrap=True)  # a broken name cannot be copied
    distinguished = any(settings.values())
    for heading in ("settings", "tested on", "figures") if distinguished else ("tested on", "figures"):
        table.add_column(heading, overflow="fold")
    for file, result in results.items():
        figures = with_kinds(result["headline"], result["kinds"]["headline"])
        shown = "\n".join(f"{name} {format_figure(value)}" for name, value in figures.items())
        own = [settings[file]] if distinguished else []
        table.add_row(*map(escape, (file.name, *own, tested_on(result), shown)))
    return table


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of block characters of proportional height; × for NaN and infinite values."""
    if len(values) > WIDTH:
        edges = [round(place * len(values) / WIDTH) for place in range(WIDTH + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    finite = [value for value in values if isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join(
        BLOCKS[min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS)))] if isfinite(value) else NOT_FINITE
        for value in values
    )


SHOW = Command(
    "show",
    "show a run as a page of text, or of curves",
    options,
    run,
    examples={"hirl show runs/photos-mocov2-hirl-0": "a run as a page of text"},
    guide="explore.md#curves-of-a-run",
)
