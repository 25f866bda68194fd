"""Detection after pretraining: random weights, the baseline and HIRL, in pairs of one seed each.

    hirl compare wordnet50/ small/moco_v2 small/dino --seeds 0 1 2 --out comparison
    python -m benchmarks.detection_study comparison pennfudan/ --out study

Evaluates the runs of a comparison, and an untrained encoder of the same kind, by the task detection. What is done is
not done again: the same call continues after any stop.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hirl
from hirl.encoders.backbones import make_backbone
from hirl.evals import Detection
from hirl.run import Run
from hirl.studies.comparison_tables import Figures, column
from hirl.studies.paired import paired
from hirl.terminal.tables import Cells, print_tables, write_tables
from hirl.train.recipe import recipe

FIGURES = ("box AP", "box AP50", "mask AP", "mask AP50")
RANDOM, BASE = "random", "base"
# Small enough for a CPU: shorter sides of 128 and 160 px, and fewer regions than the published detectors take.
TASK = Detection(batch_size=4, short_sides=(128, 160), regions=32, proposals=100, channels=64, hidden=256)


def subject(name: str, arm: str, seed: int, comparison: Path, out: Path) -> tuple[Any, dict[str, Any]]:
    """What is evaluated, and further arguments for `hirl.evaluate`."""
    label = name.replace("/", "-")
    if arm == RANDOM:
        options = recipe(name)
        method = options["method"]
        torch.manual_seed(seed)
        encoder = make_backbone(method.backbone, **method.backbone_args)
        return encoder, {"image_size": options["image_size"], "out": out / f"{label}-{arm}-{seed}"}
    run = Run(comparison / f"{label}-{arm}-{seed}")
    if not run.finished:
        raise SystemExit(f"{run.folder} is not a finished run: train it with hirl compare first")
    return run, {}


def compared(figures: Figures, names: list[str], arm: str, seeds: list[int]) -> Cells:
    """A row per recipe and figure: the mean of each arm, and differences within pairs with their standard errors."""
    rows = [["recipe", "figure", "seeds", RANDOM, BASE, arm, "base − random", f"{arm} − base"]]
    for name in names:
        for figure in FIGURES:
            values = {one: column(figures, name, one, seeds, figure) for one in (RANDOM, BASE, arm)}
            complete = [seed for seed in seeds if all(seed in found for found in values.values())]
            if complete:
                means = [
                    f"{100 * sum(found[seed] for seed in complete) / len(complete):.1f}" for found in values.values()
                ]
                pairs = [
                    _shown([values[late][seed] - values[early][seed] for seed in complete])
                    for early, late in ((RANDOM, BASE), (BASE, arm))
                ]
                rows.append([name, figure, str(len(complete)), *means, *pairs])
    return rows


def _shown(differences: list[float]) -> str:
    found = paired(differences)
    assert found is not None
    error = "" if found.error is None or found.p is None else f" ± {100 * found.error:.1f} (p {found.p:.3f})"
    return f"{100 * found.difference:+.1f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path, help="folder of hirl compare")
    parser.add_argument("annotated", type=Path, help="a COCO-format folder to detect on")
    parser.add_argument("--recipes", nargs="+", default=["small/moco_v2", "small/dino"])
    parser.add_argument("--arm", default="HIRL", help="the arm of the comparison next to base")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--detection_epochs", type=float, help="by default the published number")
    parser.add_argument("--out", type=Path, default=Path("detection_study"))
    arguments = parser.parse_args()
    task = replace(TASK, epochs=arguments.detection_epochs)
    figures: Figures = {}
    tables: dict[str, Cells] = {}
    for name in arguments.recipes:
        for seed in arguments.seeds:
            for arm in (RANDOM, BASE, arguments.arm):
                encoder, more = subject(name, arm, seed, arguments.comparison, arguments.out)
                found = hirl.evaluate(
                    encoder, task, data=arguments.annotated, seed=seed, device="cpu", reuse=True, **more
                )
                figures[name, arm, seed] = dict(found["detection"].headline)
                tables = {"detection": compared(figures, arguments.recipes, arguments.arm, arguments.seeds)}
                write_tables(arguments.out, tables)
    print_tables(tables)


if __name__ == "__main__":
    main()
