"""Break each detail of the six methods in turn, in a copy of the package, and expect a test to fail for it.

    python tests/break_details.py [filters ...] [--list] [--jobs 2]

The details are in tests/details, one file per method. An entry has:

    detail    one sentence
    change    text of the source → its replacement, one or several
    file      the source file, within src/hirl; by default the method's own
    times     how often each text occurs in the file; by default once
    tests     pytest names of the tests that must fail, within tests; by default those of the method

Filters select the details whose method, sentence or file contains one of them. The exit code is 1 unless every broken
detail makes an assertion fail: a test that crashes has found a wrong replacement, not a wrong detail.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
# Loaded once, in the process that the others are forked from: importing them takes longer than most tests.
SLOW_TO_LOAD = [
    "lightly.loss",
    "lightly.models.modules.heads",
    "lightly.utils.lars",
    "pytest",
    "scipy.stats",
    "timm",
    "torch",
    "torchvision",
    "yaml",
]
# In place of those in pyproject.toml, which run tests in parallel.
PYTEST_OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib", "-m", "not long"]
RED, GREEN, CRASH = "red", "STILL GREEN", "CRASHED"


@dataclass(frozen=True)
class Detail:
    method: str
    sentence: str
    change: dict[str, str]
    file: str
    tests: tuple[str, ...]
    times: int = 1

    def broken(self, source: str) -> str:
        """The file's text with the detail broken."""
        for old, new in self.change.items():
            if source.count(old) != self.times:
                raise ValueError(
                    f"{self.method}, {self.sentence!r}: {old!r} occurs {source.count(old)} times in {self.file}, but "
                    f"must occur {self.times} times."
                )
            source = source.replace(old, new)
        return source


@dataclass
class Verdict:
    """A plug-in of pytest that records the first failure."""

    outcome: str = GREEN
    seconds: float = 0.0
    test: str = ""
    why: str = ""
    output: str = field(default="", repr=False)

    def pytest_exception_interact(self, node: Any, call: pytest.CallInfo[Any]) -> None:
        if self.outcome != GREEN or call.excinfo is None:
            return
        noticed = isinstance(call.excinfo.value, AssertionError | pytest.fail.Exception)
        self.outcome = RED if noticed else CRASH
        self.test = node.nodeid.rpartition("/")[2]
        self.why = call.excinfo.exconly().splitlines()[0]


def all_details(root: Path) -> list[Detail]:
    details = []
    for file in sorted((root / "tests" / "details").glob("*.yaml")):
        for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
            usual = {"file": f"methods/{file.stem}.py", "tests": [f"methods/test_{file.stem}.py"]}
            options = usual | entry
            options["tests"] = tuple(options["tests"])
            details.append(Detail(method=file.stem, sentence=options.pop("detail"), **options))
    for detail in details:
        detail.broken((root / "src" / "hirl" / detail.file).read_text(encoding="utf-8"))
    return details


@contextlib.contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A temporary folder with the files of `root` that tests need."""
    with tempfile.TemporaryDirectory(prefix="hirl-without-a-detail-") as folder:
        copy = Path(folder).resolve()
        for name in ("src", "tests", "docs"):
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(root / "pyproject.toml", copy)
        yield copy


def judge(detail: Detail, root: Path) -> Verdict:
    """Run the detail's tests on a copy of the package with the detail broken; in a process used only for this."""
    with copied(root) as copy:
        if detail.change:
            source = copy / "src" / "hirl" / detail.file
            source.write_text(detail.broken(source.read_text(encoding="utf-8")), encoding="utf-8")
        gc.freeze()  # nothing loaded before the fork is garbage, and collecting would scan all of it
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(copy / "src")  # for processes that tests start
        sys.path.insert(0, str(copy / "src"))
        os.chdir(copy)
        found = importlib.import_module("hirl").__file__
        if found is None or not Path(found).resolve().is_relative_to(copy):
            raise RuntimeError(f"hirl was imported from {found}, but must come from the copy in {copy}.")
        verdict = Verdict()
        start = time.perf_counter()
        with (copy / "output.txt").open("w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            names = [f"tests/{name}" for name in detail.tests]
            code = pytest.main([*PYTEST_OPTIONS, *names], [verdict])
        verdict.seconds = time.perf_counter() - start
        verdict.output = (copy / "output.txt").read_text(encoding="utf-8")
        if (code == pytest.ExitCode.OK) != (verdict.outcome == GREEN):
            verdict.outcome, verdict.why = CRASH, f"pytest ended with {code!r}"
        os.chdir(root)  # before the folder is deleted
    return verdict


def judged(details: list[Detail], root: Path, jobs: int) -> Iterator[tuple[Detail, Verdict]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SLOW_TO_LOAD)
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from zip(details, pool.imap(partial(judge, root=root), details), strict=True)


def untouched(details: list[Detail]) -> list[Detail]:
    """The tests that details name, with nothing broken."""
    names = sorted({name for detail in details for name in detail.tests})
    return [Detail(method="untouched", sentence=name, change={}, file="", tests=(name,)) for name in names]


def summary(verdicts: list[tuple[Detail, Verdict]]) -> Table:
    table = Table("method", "broken", "red", "still green", "crashed")
    for method in [*dict.fromkeys(detail.method for detail, _ in verdicts), "all"]:
        counts = Counter(verdict.outcome for detail, verdict in verdicts if method in (detail.method, "all"))
        table.add_row(method, str(counts.total()), *(str(counts[outcome]) for outcome in (RED, GREEN, CRASH)))
    return table


def run(details: list[Detail], root: Path, jobs: int, console: Console) -> int:
    """The exit code."""
    start = time.perf_counter()
    for detail, verdict in judged(untouched(details), root, jobs):
        console.print(f"untouched → {verdict.outcome.lower()} ({verdict.seconds:.0f} s, {detail.sentence})")
        if verdict.outcome != GREEN:
            console.print(verdict.output)
            console.print("The tests fail before anything is broken: fix them first.")
            return 1
    verdicts = []
    for detail, verdict in judged(details, root, jobs):
        verdicts.append((detail, verdict))
        reason = f": {verdict.why}" if verdict.outcome == CRASH else ""
        first = f", {verdict.test}{reason}" if verdict.outcome != GREEN else ""
        console.print(f"{detail.method}: {detail.sentence} → {verdict.outcome} ({verdict.seconds:.0f} s{first})")
    console.print(summary(verdicts))
    console.print(f"{len(verdicts)} details in {(time.perf_counter() - start) / 60:.0f} minutes")
    return int(any(verdict.outcome != RED for _, verdict in verdicts))


def main() -> int:
    parser = argparse.ArgumentParser(description="Break each detail of the methods and expect a test to fail.")
    parser.add_argument("filters", nargs="*", help="only details whose method, sentence or file contains one of these")
    parser.add_argument("--list", action="store_true", help="print the details without running anything")
    parser.add_argument("--jobs", type=int, default=2, help="details tested in parallel (default: 2)")
    arguments = parser.parse_args()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    os.environ["OMP_NUM_THREADS"] = "1"  # networks this small gain nothing from a second thread
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plug-ins of other packages load slower than a test runs
    with copied(ROOT) as root:  # edits made meanwhile have no effect
        wanted = [text.lower() for text in arguments.filters]
        try:
            every = all_details(root)
        except ValueError as error:
            parser.error(str(error))
        details = [
            detail
            for detail in every
            if not wanted or any(text in f"{detail.method} {detail.sentence} {detail.file}".lower() for text in wanted)
        ]
        if not details:
            parser.error(f"no detail contains any of {', '.join(arguments.filters)}: --list prints them all.")
        if not arguments.list:
            return run(details, root, arguments.jobs, console)
        for detail in details:
            console.print(f"{detail.method}: {detail.sentence} ({detail.file}; {', '.join(detail.tests)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
