"""Does the gap open as the baseline stops improving? One pair per method from nothing, as long as a CPU allows.

    python -m benchmarks.study_set wordnet50/ --images 10000 --out wordnet.npz
    python -m benchmarks.long_runs wordnet.npz --out long

Per method: the baseline, and HIRL with its first tree after a tenth of the epochs and after half of them, both forked
from the baseline. Kept checkpoints (`--at`) are evaluated as soon as they are there; `curves_SEED.md` and
`curves_SEED.csv` have every figure so far. The same command continues to the bit where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from pathlib import Path
from typing import Any

from hirl.evals.evaluate import evaluate
from hirl.files import atomic_write
from hirl.run import Run
from hirl.studies.arms import BASE
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe

TASKS = ("knn", "clustering", "tree")
Curves = dict[tuple[str, str, int], dict[str, float]]  # by method, arm and epoch: figure -> value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["moco_v2", "simsiam"])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--at", nargs="+", type=int, default=[25, 50, 100, 150, 200], help="epochs to evaluate after")
    parser.add_argument("--keep_every", type=int, default=25, help="epochs between checkpoints; divides those of --at")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if any(epoch % given.keep_every or epoch > given.epochs for epoch in given.at):
        parser.error(f"--at must be multiples of {given.keep_every} (--keep_every) up to {given.epochs} (--epochs)")
    starts = {"HIRL from a tenth": given.epochs // 10, "HIRL from half": given.epochs // 2}
    curves: Curves = {}
    for method in given.methods:
        shared: dict[str, Any] = {"epochs": given.epochs, "keep_every": given.keep_every, "seed": given.seed}
        shared |= {"knn_every": 0}
        base_folder = given.out / f"{method}-base-{given.seed}"
        arms: dict[str, dict[str, Any]] = {BASE: {"hierarchy": None, "fork_at": tuple(sorted(starts.values()))}}
        for arm, start in starts.items():
            hierarchy = dataclasses.replace(recipe(f"small/{method}")["hierarchy"], start_epoch=start)
            arms[arm] = {"hierarchy": hierarchy, "stage_one": base_folder}
        for arm, options in arms.items():
            name = "base" if arm == BASE else f"from-{starts[arm]}"
            folder = given.out / f"{method}-{name}-{given.seed}"
            run = pretrain(given.data, **(recipe(f"small/{method}") | shared | options), out=folder)
            for epoch in given.at:
                if epoch > starts.get(arm, 0):
                    curves[method, arm, epoch] = _figures(run, epoch, given.data)
            _write(curves, given.out / f"curves_{given.seed}")
    print((given.out / f"curves_{given.seed}.md").read_text(), end="")


def _figures(run: Run, epoch: int, data: str) -> dict[str, float]:
    """Evaluate the state of a run after an epoch."""
    checkpoint = run.checkpoints_folder / f"epoch-{epoch:04d}.ckpt"
    results = evaluate(checkpoint, *TASKS, data=data, reuse=True)
    return {f"{task}, {name}": value for task, found in results.items() for name, value in found.headline.items()}


def _write(curves: Curves, file: Path) -> None:
    """Write every figure: as .csv with a row per value, as .md with a row per figure and a column per arm."""
    names = list(dict.fromkeys(name for figures in curves.values() for name in figures if "run's own" not in name))
    with atomic_write(file.with_suffix(".csv")) as part, part.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["method", "arm", "epoch", "figure", "value"])
        for (method, arm, epoch), figures in curves.items():
            writer.writerows([method, arm, epoch, name, figures[name]] for name in names if name in figures)
    arms = list(dict.fromkeys(arm for _, arm, _ in curves))
    lines = ["| " + " | ".join(["method", "epoch", "figure", *arms]) + " |", "|---" * (3 + len(arms)) + "|"]
    for method, epoch in dict.fromkeys((method, epoch) for method, _, epoch in curves):
        for name in names:
            values = [curves.get((method, arm, epoch), {}).get(name) for arm in arms]
            cells = ["" if value is None else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}" for value in values]
            lines.append("| " + " | ".join([method, str(epoch), name, *cells]) + " |")
    with atomic_write(file.with_suffix(".md")) as part:
        part.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
