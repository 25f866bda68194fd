"""Breaks each detail of the six methods in turn, in a copy of the package, and expects a test to fail for it.

    python tests/break_details.py [words ...] [--list] [--jobs 2]

The details are in tests/details, a file for each method. An entry says the detail in a sentence and how to break it:

    says      the detail
    change    text of the source → what to put in its place, one or several
    file      of the source, within src/hirl; the method's own by default
    times     how often each text stands in the file; 1 by default
    tests     pytest's names of the tests that must notice, within tests; those of the method by default

Words choose the details whose method, sentence or file has one of them. The exit code is 1 unless every detail that was
broken made an assertion fail: a test that merely crashes has noticed a wrong replacement, not a wrong detail.
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
# Loaded once, in the process that the others are forked from: they take most of the time that a test takes.
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
RED, GREEN, CRASH = "red", "STILL GREEN", "CRASHED"


@dataclass(frozen=True)
class Detail:
    method: str
    says: str
    change: dict[str, str]
    file: str
    tests: tuple[str, ...]
    times: int = 1

    def broken(self, source: str) -> str:
        """The file's text without the detail."""
        for old, new in self.change.items():
            if source.count(old) != self.times:
                raise ValueError(
                    f"{self.method}, {self.says!r}: {old!r} stands {source.count(old)} times in {self.file}, but must "
                    f"stand there {self.times} times."
                )
            source = source.replace(old, new)
        return source


@dataclass
class Verdict:
    """As a plug-in of pytest it takes down the first failure."""

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
            told = usual | entry
            details.append(Detail(method=file.stem, **told | {"tests": tuple(told["tests"])}))
    for detail in details:
        detail.broken((root / "src" / "hirl" / detail.file).read_text(encoding="utf-8"))
    return details


@contextlib.contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A folder with what tests need of `root`, for a while."""
    with tempfile.TemporaryDirectory(prefix="hirl-without-a-detail-") as folder:
        copy = Path(folder).resolve()
        for name in ("src", "tests"):
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(root / "pyproject.toml", copy)
        yield copy


def judge(detail: Detail, root: Path) -> Verdict:
    """Runs the detail's tests on a copy of the package without it; in a process of its own, which is left spoilt."""
    with copied(root) as copy:
        if detail.change:
            source = copy / "src" / "hirl" / detail.file
            source.write_text(detail.broken(source.read_text(encoding="utf-8")), encoding="utf-8")
        gc.freeze()  # of what was loaded before the fork nothing is garbage, and pytest would look through all of it
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(copy / "src")  # for the processes that tests start
        sys.path.insert(0, str(copy / "src"))
        os.chdir(copy)
        found = importlib.import_module("hirl").__file__
        if found is None or not Path(found).resolve().is_relative_to(copy):
            raise RuntimeError(f"hirl was imported from {found}, but must come from the copy in {copy}.")
        verdict = Verdict()
        start = time.perf_counter()
        with (copy / "output.txt").open("w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            code = pytest.main(["-x", "-p", "no:cacheprovider", *(f"tests/{name}" for name in detail.tests)], [verdict])
        verdict.seconds = time.perf_counter() - start
        verdict.output = (copy / "output.txt").read_text(encoding="utf-8")
        if (code == pytest.ExitCode.OK) != (verdict.outcome == GREEN):
            verdict.outcome, verdict.why = CRASH, f"pytest ended with {code!r}"
        os.chdir(root)  # nobody may stand in a folder that goes
    return verdict


def judged(details: list[Detail], root: Path, jobs: int) -> Iterator[tuple[Detail, Verdict]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SLOW_TO_LOAD)
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from zip(details, pool.imap(partial(judge, root=root), details), strict=True)


def untouched(details: list[Detail]) -> list[Detail]:
    """Nothing broken: for every test that details name."""
    names = sorted({name for detail in details for name in detail.tests})
    return [Detail(method="untouched", says=name, change={}, file="", tests=(name,)) for name in names]


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
        console.print(f"untouched → {verdict.outcome.lower()} ({verdict.seconds:.0f} s, {detail.says})")
        if verdict.outcome != GREEN:
            console.print(verdict.output)
            console.print("The tests fail before anything is broken: mend them first.")
            return 1
    verdicts = []
    for detail, verdict in judged(details, root, jobs):
        verdicts.append((detail, verdict))
        reason = f": {verdict.why}" if verdict.outcome == CRASH else ""
        first = f", {verdict.test}{reason}" if verdict.outcome != GREEN else ""
        console.print(f"{detail.method}: {detail.says} → {verdict.outcome} ({verdict.seconds:.0f} s{first})")
    console.print(summary(verdicts))
    console.print(f"{len(verdicts)} details in {(time.perf_counter() - start) / 60:.0f} minutes")
    return int(any(verdict.outcome != RED for _, verdict in verdicts))


def main() -> int:
    parser = argparse.ArgumentParser(description="Breaks each detail of the methods and expects a test to fail.")
    parser.add_argument("words", nargs="*", help="only details whose method, sentence or file has one of these")
    parser.add_argument("--list", action="store_true", help="print the details and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="details broken at a time (default: 2)")
    arguments = parser.parse_args()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    os.environ["OMP_NUM_THREADS"] = "1"  # networks this small only wait for a second thread
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other packages' plug-ins take longer to load than a test
    with copied(ROOT) as root:  # what is edited meanwhile plays no part
        wanted = [word.lower() for word in arguments.words]
        try:
            every = all_details(root)
        except ValueError as error:
            parser.error(str(error))
        details = [
            detail
            for detail in every
            if not wanted or any(word in f"{detail.method} {detail.says} {detail.file}".lower() for word in wanted)
        ]
        if not details:
            parser.error(f"no detail has any of {', '.join(arguments.words)}: --list prints them all.")
        if not arguments.list:
            return run(details, root, arguments.jobs, console)
        for detail in details:
            console.print(f"{detail.method}: {detail.says} ({detail.file}; {', '.join(detail.tests)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
