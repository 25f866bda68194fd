"""The study from a strong start, over all sets: HIRL against every other arm, at the finest and the coarsest labels.

    python -m benchmarks.strong_start_pooled strong/plants strong/grocery128 --out strong/all

The folders are those that `benchmarks.strong_start` wrote. A pair is one set, method and seed. p-values are of sign
flips, and are corrected for the number of comparisons in the table by Holm's method. Tables of all sets and of each,
and plots of each set pooled over methods.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean

from hirl.studies.comparison_plot import write_plots
from hirl.studies.paired import differences_of, paired
from hirl.terminal.figures import share
from hirl.terminal.tables import Cells, print_tables, write_tables

ARM = "HIRL"
ORDER = ("base", "neighbours", "frozen", "paper")
MEASURES = {
    "KNN": "knn, ",
    "linear": "linear, ",
    "AMI of K-means": "clusterings, AMI, ",
    "AMI of the tree": "trees like labels, AMI, ",
    "AMI of its best level": "tree, AMI, ",
}
LABELS = ("finest", "coarsest")
Found = dict[str, dict[tuple[str, str], dict[int, float]]]
"""By figure, such as "KNN, finest labels", then by set and arm: the value of every pair, by its number."""


def read(folders: Iterable[Path]) -> Found:
    found: Found = defaultdict(lambda: defaultdict(dict))
    for folder in folders:
        values = _values(folder / "figures.csv")
        finished = dict.fromkeys((method, seed) for method, _, arm, seed in values if arm == ARM)
        if not finished:
            raise SystemExit(f"{folder} has no finished run of {ARM} yet")
        numbers = {pair: number for number, pair in enumerate(finished)}
        for measure, start in MEASURES.items():
            own = list(dict.fromkeys(name for _, name, _, _ in values if name.startswith(start) and "own" not in name))
            for labels, figure in zip(LABELS, (own[0], own[-1]), strict=True) if own else ():  # not of every task
                for (method, name, arm, seed), value in values.items():
                    if name == figure and (method, seed) in numbers:
                        found[f"{measure}, {labels} labels"][folder.name, arm][numbers[method, seed]] = value
    return found


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


def _differences(found: Found, sets: Iterable[str]) -> Iterator[tuple[str, str, list[float]]]:
    """By figure and other arm: the differences of HIRL from it over these sets."""
    sets = list(sets)
    for figure, values in found.items():
        for other in (arm for arm in ORDER if any((name, arm) in values for name in sets)):
            pairs = [differences_of(values.get((name, other), {}), values.get((name, ARM), {})) for name in sets]
            yield figure, other, [difference for of_set in pairs for difference in of_set]


def pooled(found: Found, sets: Iterable[str]) -> Cells:
    """Every figure and other arm: the mean difference over all pairs, and its p-value corrected for their number."""
    tested = []
    for figure, other, differences in _differences(found, sets):
        one = paired(differences)
        if one is not None and one.p is not None:
            above = f"{sum(difference > 0 for difference in differences)} of {one.pairs}"
            tested.append((figure, other, above, _points(one.difference, one.error), one.p))
    corrected = holm([p for *_, p in tested])
    rows = [[*row, _small(p), _small(fixed)] for (*row, p), fixed in zip(tested, corrected, strict=True)]
    return [["figure", f"{ARM} against", "pairs above", "difference", "p", "p, corrected"], *rows]


def by_set(found: Found, name: str) -> Cells:
    """The means of every arm on one set, and HIRL's differences from each other arm."""
    others = [arm for arm in ORDER if any((name, arm) in values for values in found.values())]
    measured = {figure: values for figure, values in found.items() if (name, ARM) in values}  # not every task
    rows = []
    for figure, values in measured.items():
        means = [f"{100 * mean(values[name, arm].values()):.2f}" for arm in (*others, ARM)]
        rows.append([figure, *means])
    for figure, other, differences in _differences(measured, [name]):
        one = paired(differences)
        if one is not None:
            place = 1 + len(others) + 1 + others.index(other)
            row = next(row for row in rows if row[0] == figure)
            row += [""] * (place + 1 - len(row))
            row[place] = _points(one.difference, one.error)
    return [["figure", *others, ARM, *(f"{ARM} − {other}" for other in others)], *rows]


def _small(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def _points(difference: float, error: float | None) -> str:
    return f"{100 * difference:+.2f} ± {100 * (error or 0):.2f}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = read(given.folders)
    sets = [folder.name for folder in given.folders]
    tables = {"all sets": pooled(found, sets)} | {name: by_set(found, name) for name in sets}
    write_tables(given.out, tables)
    print_tables(tables)
    # frozen has one value per set, whatever the method: as points of a plot it would look like several
    trained = {
        figure: {key: {pair: share(of) for pair, of in by.items()} for key, by in values.items() if key[1] != "frozen"}
        for figure, values in found.items()
        if all((name, ARM) in values for name in sets)  # not of a task that some sets were not evaluated by
    }
    write_plots(given.out, trained, together="all sets")


if __name__ == "__main__":
    main()
