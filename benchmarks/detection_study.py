"""Detection after pretraining: random weights, the baseline and HIRL, in pairs of one seed each.

    python -m benchmarks.detection_study wordnet50/ pennfudan/ --out study

Pretrains both arms of each recipe on the first folder and evaluates them, and an untrained encoder of the same kind, by
the task detection on the second. What is done is not done again: the same call continues after any stop.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import hirl
from hirl.backbones import make_backbone
from hirl.evals import Detection
from hirl.terminal.tables import Cells, print_tables, write_tables
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe

FIGURES = ("box AP", "box AP50", "mask AP", "mask AP50")
ARMS = ("random", "base", "HIRL")
# Small enough for a CPU: shorter sides of 160 to 224 px, and fewer regions than the published detectors take.
TASK = Detection(batch_size=4, short_sides=(160, 192, 224), regions=64, proposals=200, channels=64, hidden=256)


def subject(name: str, arm: str, seed: int, images: Path, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What is evaluated, and further arguments for `hirl.evaluate`."""
    options = recipe(name)
    method = options["method"]
    if arm == "random":
        torch.manual_seed(seed)
        encoder = make_backbone(method.backbone, **method.backbone_args)
        return encoder, {"image_size": options["image_size"], "out": folder}
    changed: dict[str, Any] = {"seed": seed, "accelerator": "cpu", "devices": 1}
    if arm == "base":
        changed["hierarchy"] = None
    return pretrain(str(images), **options | changed, out=folder), {}


def compared(figures: dict[tuple[str, str, int], dict[str, float]], names: list[str]) -> Cells:
    """A row per recipe and figure: the mean of each arm, and differences within pairs with their standard errors."""
    rows = [["recipe", "figure", "seeds", *ARMS, "base − random", "HIRL − base"]]
    for name in names:
        seeds = sorted({seed for one, _, seed in figures if one == name})
        complete = [seed for seed in seeds if all((name, arm, seed) in figures for arm in ARMS)]
        if not complete:
            continue
        for figure in FIGURES:
            values = {arm: [figures[name, arm, seed][figure] for seed in complete] for arm in ARMS}
            means = [f"{100 * mean(values[arm]):.1f}" for arm in ARMS]
            pairs = [_difference(values[late], values[early]) for early, late in (("random", "base"), ("base", "HIRL"))]
            rows.append([name, figure, str(len(complete)), *means, *pairs])
    return rows


def _difference(ours: list[float], theirs: list[float]) -> str:
    pairs = [100 * (one - other) for one, other in zip(ours, theirs, strict=True)]
    error = f" ± {stdev(pairs) / len(pairs) ** 0.5:.1f}" if len(pairs) > 1 else ""
    return f"{mean(pairs):+.1f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="images to pretrain on")
    parser.add_argument("annotated", type=Path, help="a COCO-format folder to detect on")
    parser.add_argument("--recipes", nargs="+", default=["small/moco_v2", "small/dino"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--detection_epochs", type=float, help="by default the published number")
    parser.add_argument("--out", type=Path, default=Path("detection_study"))
    arguments = parser.parse_args()
    task = replace(TASK, epochs=arguments.detection_epochs)
    figures: dict[tuple[str, str, int], dict[str, float]] = {}
    for name in arguments.recipes:
        for seed in arguments.seeds:
            for arm in ARMS:
                folder = arguments.out / f"{name.replace('/', '-')}-{arm}-{seed}"
                encoder, more = subject(name, arm, seed, arguments.images, folder)
                found = hirl.evaluate(
                    encoder, task, data=arguments.annotated, seed=seed, device="cpu", reuse=True, **more
                )
                figures[name, arm, seed] = dict(found["detection"].headline)
                tables = {"detection": compared(figures, arguments.recipes)}
                write_tables(arguments.out, tables)
    print_tables(tables)


if __name__ == "__main__":
    main()
