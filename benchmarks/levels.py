"""Levels from the features against levels for the number of images: how well the trees agree with labels.

    hirl embed tf_efficientnet_lite0 --data pets/ --split train --out pets-train.npz    # and --split val
    python -m benchmarks.levels pets-train.npz pets-val.npz --seeds 0 1 --out levels

Each seed leaves out another tenth of the training images. The val images are assigned to both trees, and for each label
level the AMI in % of the level of the tree that fits it best counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import torch

from benchmarks.trees import Images, agreement, from_file
from hirl.hierarchy.builder import POOLED_FEATURES
from hirl.hierarchy.level_search import suggest_levels
from hirl.terminal.tables import print_tables, write_tables

KEPT = 0.9  # share of the training images


def compared(train: Images, test: Images, seed: int) -> list[str]:
    order = torch.randperm(len(train[0]), generator=torch.Generator().manual_seed(seed))
    features = train[0][order[: int(KEPT * len(order))]]
    row, means = [], []
    for levels in (suggest_levels(len(features)), suggest_levels(features)):
        tree = POOLED_FEATURES(features, levels, seed=seed)
        found = torch.tensor(agreement(tree.paths[tree.assign(test[0])], test[1])).view(len(levels), -1)
        best = found.amax(0).tolist()  # per label level
        means.append(mean(best))
        row += [", ".join(map(str, levels)), " / ".join(f"{value:.1f}" for value in best)]
    return [*row, f"{means[1] - means[0]:+.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="+", type=Path, help=".npz files, of training and test images in turn")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("levels"))
    given = parser.parse_args()
    if len(given.features) % 2:
        parser.error("name pairs of files: of training images and of test images")
    given.out.mkdir(parents=True, exist_ok=True)
    rows = [["images", "seed", "levels for the number", "AMI", "levels from the features", "AMI", "difference"]]
    for train, test in zip(given.features[::2], given.features[1::2], strict=True):
        for seed in given.seeds:
            rows.append([train.stem, str(seed), *compared(from_file(train), from_file(test), seed)])
            write_tables(given.out, {"levels": rows})
    print_tables({"levels": rows})


if __name__ == "__main__":
    main()
