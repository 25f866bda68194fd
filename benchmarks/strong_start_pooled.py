"""The study from a strong start, over all sets: HIRL against every other arm, at the finest and the coarsest labels.

    python -m benchmarks.strong_start_pooled strong/plants strong/grocery128 --out strong/all

The folders are those that `benchmarks.strong_start` wrote. A pair is one set, method and seed. p-values are of sign
flips, and are corrected for the number of comparisons in the table by Holm's method.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from hirl.studies.paired import paired
from hirl.terminal.tables import Cells, print_tables, write_tables

ARM = "HIRL"
MEASURES = {
    "KNN": "knn, ",
    "linear": "linear, ",
    "AMI of K-means": "clustering, AMI, ",
    "AMI of the tree": "tree, AMI, ",
}
LABELS = ("finest", "coarsest")
Pairs = dict[tuple[str, str, str], list[float]]
"""By measure, labels and the other arm: the differences of HIRL from it."""


def read_pairs(folders: Iterable[Path]) -> Pairs:
    pairs: Pairs = defaultdict(list)
    for folder in folders:
        values = _values(folder / "figures.csv")
        methods, arms = ({key[place] for key in values} for place in (0, 2))
        for measure, start in MEASURES.items():
            own = list(dict.fromkeys(name for _, name, _, _ in values if name.startswith(start) and "own" not in name))
            for labels, name in zip(LABELS, (own[0], own[-1]), strict=True):
                for method, other in ((method, arm) for method in sorted(methods) for arm in sorted(arms - {ARM})):
                    seeds = [seed for of, figure, arm, seed in values if (of, figure, arm) == (method, name, ARM)]
                    pairs[measure, labels, other] += [
                        values[method, name, ARM, seed] - values[method, name, other, seed]
                        for seed in seeds
                        if (method, name, other, seed) in values
                    ]
    return pairs


def _values(file: Path) -> dict[tuple[str, str, str, str], float]:
    """By method, figure, arm and seed."""
    with file.open(newline="", encoding="utf-8") as opened:
        return {
            (row["method"], row["figure"], row["arm"], column): float(value)
            for row in csv.DictReader(opened)
            for column, value in row.items()
            if column.startswith("seed_") and value
        }


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm, 1979), in the same order."""
    corrected = [0.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = largest
    return corrected


def table(pairs: Pairs) -> Cells:
    found = {key: paired(differences) for key, differences in pairs.items()}
    tested = {key: one for key, one in found.items() if one is not None and one.p is not None}
    corrected = dict(zip(tested, holm([one.p for one in tested.values() if one.p is not None]), strict=True))
    rows = []
    for key, one in tested.items():
        above = sum(difference > 0 for difference in pairs[key])
        shown = f"{100 * one.difference:+.2f} ± {100 * (one.error or 0):.2f}".replace("-", "−")
        rows.append([*key, f"{above} of {one.pairs}", shown, f"{one.p:.4f}", f"{corrected[key]:.4f}"])
    return [["figure", "labels", f"{ARM} against", "pairs above", "difference", "p", "p, corrected"], *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tables = {"all sets": table(read_pairs(given.folders))}
    write_tables(given.out, tables)
    print_tables(tables)


if __name__ == "__main__":
    main()
