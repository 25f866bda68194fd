"""`hirl show` and `hirl runs`: run folders as text."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from hirl.cli.command import Command


def show_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")


def show(config: Namespace) -> None:
    from hirl.cli.show import show_run
    from hirl.runs.folder import Run

    show_run(Run(config.run))


def runs_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="where runs lie")


def runs(config: Namespace) -> None:
    from hirl.cli.show import list_runs

    list_runs(config.folder)


SHOW = Command("show", "shows a run as a page of text", show_options, show)
RUNS = Command("runs", "lists runs", runs_options, runs)
