"""Does HIRL help from a strong start? Frozen, baseline, baseline with neighbours, HIRL and the paper's, side by side.

    python -m benchmarks.strong_start plants/ --out strong/plants --seeds 0 1 2

Every arm of every method and seed is trained and evaluated on the val split (`--test_split`); tables of all differences
from the baseline, paired by seed and pooled over methods, are written after each. Trees are judged twice: with levels
for the number of images, of which the best counts, and, as K-means is, with as many nodes as there are classes at each
label level. With few clusters one K-means or tree differs much from the next, so means over several count
(`benchmarks.averaged`). What is finished is kept: the same command continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.averaged import Clusterings, TreesLikeLabels
from hirl.evals import TreeAgreement
from hirl.evals.base import Evaluation
from hirl.evals.evaluate import evaluate
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.hierarchy.settings import Hierarchy
from hirl.run import Run
from hirl.studies.arms import BASE
from hirl.studies.compare import epoch_times
from hirl.studies.comparison_tables import Figures, numbers, pooled, running_time, side_by_side
from hirl.terminal.tables import print_tables, write_tables
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe

PAPER = Hierarchy(  # as --config paper sets it
    start_epoch=0,
    weight=1.0,
    head_layers=2,
    loss="paths",
    rebuild=True,
    features="pass",
    bank_momentum=0.0,
    builder=HierarchicalKMeans(order="bottom-up"),
)
ARMS: dict[str, dict[str, Any]] = {
    BASE: {"hierarchy": None},
    "neighbours": {"hierarchy": None, "neighbours": 0.5},
    "HIRL": {},
    "paper": {"hierarchy": PAPER, "neighbours": 0.0},
}
TASKS = ("knn", "linear", "clustering", "tree")
REFERENCES = 500  # images of other trees, which `tree` compares with and this study does not use
AVERAGED: dict[str, list[Evaluation]] = {
    "clustering": [Clusterings()],
    "tree": [TreeAgreement(sample=REFERENCES), TreesLikeLabels()],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["moco_v2", "simsiam", "swav"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--encoder", help="another start than the embedded encoder: a file, a timm name")
    parser.add_argument("--test_split")
    parser.add_argument("--image_size", type=int, help="side at which the encoder sees the images")
    parser.add_argument("--cached_views", type=int, default=6)
    given = parser.parse_args()
    figures: Figures = {}
    times: Figures = {}
    for seed in given.seeds:
        for method in given.methods:
            for arm in given.arms:
                shared = {"seed": seed, "image_size": given.image_size, "cached_views": given.cached_views}
                options = recipe(f"adapt/{method}") | shared | ARMS[arm]
                if given.encoder is not None:  # the recipe's settings, for the network of that encoder
                    options |= {"method": type(options["method"]), "encoder": given.encoder}
                run = pretrain(given.data, **options, knn_every=0, out=given.out / f"{method}-{arm}-{seed}")
                figures[method, arm, seed] = _figures(run, given)
                times[method, arm, seed] = epoch_times(run)
                if arm == BASE:  # the start is the same for all, and evaluated once
                    figures[method, "frozen", seed] = _figures(run.start_file, given)
                tables = {"figures": side_by_side(figures, given.seeds), "all methods": pooled(figures, given.seeds)}
                tables["running time"] = running_time(times, given.seeds)
                write_tables(given.out, tables, {"figures": numbers(figures, given.seeds)})
    print_tables(tables)


def _figures(subject: Run | Path, given: argparse.Namespace) -> dict[str, float]:
    shared: dict[str, Any] = {"data": given.data, "test_split": given.test_split, "reuse": True}
    if isinstance(subject, Path):
        shared |= {"out": given.out / "frozen", "cache": given.out / "frozen" / "features"}
    tasks: list[str | Evaluation] = []
    for name in given.tasks:
        tasks += AVERAGED.get(name, [name])
    results = evaluate(subject, *tasks, **shared)
    return {f"{task}, {name}": value for task, found in results.items() for name, value in found.headline.items()}


if __name__ == "__main__":
    main()
