"""The tables of a comparison: every figure per arm, differences from the baseline within pairs, running time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from statistics import mean

from hirl.studies.arms import BASE
from hirl.studies.paired import FEWEST, Paired, differences_of, mean_and_deviation, paired
from hirl.terminal.figures import Kind, format_figure, kind_of
from hirl.terminal.tables import Cells, Rows

Values = Mapping[str, float]  # figure → value
Figures = dict[tuple[str, str, int], Values]  # method, arm, seed
FEWEST_EPOCHS = 5  # of an arm, for a ratio of times


def side_by_side(figures: Figures, seeds: list[int]) -> Cells:
    """A row per method and figure; the column of each arm is followed by its difference from the base, and its p.

    Arms have the mean over seeds ± one standard deviation, differences their mean over pairs ± one standard error.
    """
    _, arms = _names(figures)
    heading = ["method", "figure", BASE]
    test = "t" if len(seeds) < FEWEST else "sign flips"
    for arm in arms:
        heading += [arm, "difference", f"p ({test})"][: 2 + (len(seeds) > 1)]
    rows = []
    for method, name, of in _by_arm(figures, seeds):
        row = [method, name, _over_seeds(of[BASE])]
        for arm in arms:
            difference, p = _difference(paired(differences_of(of[BASE], of[arm])), of[BASE], test)
            row += [_over_seeds(of[arm]), difference, p][: 2 + (len(seeds) > 1)]
        rows.append(row)
    return [heading, *rows]


def pooled(figures: Figures, seeds: list[int]) -> Cells:
    """A row per figure and arm, over the pairs of all methods that have the figure."""
    methods, arms = _names(figures)
    rows = []
    for name in dict.fromkeys(name for values in figures.values() for name in values):
        for arm in arms:
            pairs: list[float] = []
            example: dict[int, float] = {}
            for method in methods:
                base = column(figures, method, BASE, seeds, name)
                values = column(figures, method, arm, seeds, name)
                pairs += differences_of(base, values)
                example |= base
            found = paired(pairs)
            if found is not None:
                difference, p = _difference(found, example, found.test)
                better = sum(pair > 0 for pair in pairs if isfinite(pair))
                rows.append([name, arm, f"{better} of {found.pairs}", difference, p, found.test or ""])
    return [["figure", "arm", "pairs above base", "difference", "p", "test"], *rows]


def numbers(figures: Figures, seeds: list[int]) -> Rows:
    """A row per method, figure and arm: its mean and deviation, its difference from the base, and every seed."""
    heading = ["method", "figure", "arm", "mean", "standard_deviation"]
    heading += ["difference", "standard_error", "pairs", "left_out", "p", "test"]
    rows: Rows = [[*heading, *(f"seed_{seed}" for seed in seeds)]]
    for method, name, of in _by_arm(figures, seeds):
        for arm, values in of.items():
            found = None if arm == BASE else paired(differences_of(of[BASE], values))
            compared: list[float | str | None] = [None] * 6
            if found is not None:
                compared = [found.difference, found.error, found.pairs, found.left_out, found.p, found.test]
            row = [method, name, arm, *(mean_and_deviation(values.values()) if values else (None, None)), *compared]
            row += [float(values[seed]) if seed in values else None for seed in seeds]
            rows.append(["" if cell is None else cell for cell in row])
    return rows


def running_time(times: Figures, seeds: list[int]) -> Cells:
    """A row per method and arm: the time of an epoch and its ratio to that of the base.

    The ratio is left out if either arm has fewer than `FEWEST_EPOCHS` epochs over all seeds: the time of a single epoch
    says more about what else the machine did meanwhile.
    """
    methods, arms = _names(times)
    rows = []
    for method in methods:
        base = column(times, method, BASE, seeds, "seconds")
        for arm in arms:
            values = column(times, method, arm, seeds, "seconds")
            if base and values:
                ours, theirs = mean(values.values()), mean(base.values())
                epochs = [int(sum(column(times, method, one, seeds, "epochs").values())) for one in (BASE, arm)]
                ratio = f"{ours / theirs:.2f}×" if min(epochs) >= FEWEST_EPOCHS else "too few epochs"
                rows.append([method, arm, f"{theirs:.1f}", f"{ours:.1f}", "{} / {}".format(*epochs), ratio])
    heading = ["method", "arm", "seconds per base epoch", "per stage-two epoch", "epochs timed"]
    return [[*heading, f"ratio (from {FEWEST_EPOCHS} epochs each)"], *rows]


def by_figure(figures: Figures, seeds: list[int]) -> dict[str, dict[tuple[str, str], dict[int, float]]]:
    """By name of the figure, then by method and arm: its value for every seed."""
    names = dict.fromkeys(name for values in figures.values() for name in values)
    pairs = dict.fromkeys((method, arm) for method, arm, _ in figures)
    return {name: {pair: column(figures, *pair, seeds, name) for pair in pairs} for name in names}


def column(figures: Figures, method: str, arm: str, seeds: list[int], name: str) -> dict[int, float]:
    """By seed, the value of a figure."""
    found = {seed: figures.get((method, arm, seed), {}) for seed in seeds}
    return {seed: values[name] for seed, values in found.items() if name in values}


def _names(figures: Figures) -> tuple[list[str], list[str]]:
    methods = list(dict.fromkeys(method for method, _, _ in figures))
    return methods, [arm for arm in dict.fromkeys(arm for _, arm, _ in figures) if arm != BASE]


def _by_arm(figures: Figures, seeds: list[int]) -> Iterator[tuple[str, str, dict[str, dict[int, float]]]]:
    """Per method and figure: its values by arm, the base first, and seed."""
    methods, arms = _names(figures)
    for method in methods:
        for name in dict.fromkeys(name for (one, _, _), values in figures.items() if one == method for name in values):
            yield method, name, {arm: column(figures, method, arm, seeds, name) for arm in (BASE, *arms)}


def _over_seeds(values: dict[int, float]) -> str:
    """The mean ± the standard deviation, by the figures' kind and without its unit: a share as 25.60 ± 1.20."""
    if not values:
        return ""
    kind = kind_of(next(iter(values.values())))
    middle, deviation = mean_and_deviation(values.values())
    shown = _signed(middle, kind)
    if deviation is not None:
        shown += f" ± {format_figure(deviation, kind, unit=False)}"
    lost = sum(not isfinite(value) for value in values.values())
    return shown if lost in (0, len(values)) else f"{shown} ({lost} of {len(values)} not finite)"


def _difference(found: Paired | None, example: Mapping[int, float], test: str | None) -> tuple[str, str]:
    """The mean difference with its standard error, of the kind of the figures in `example`, and the p-value.

    The p-value names its test if that is not `test`: with pairs left out there may be too few for it. A dash says why
    there is none.
    """
    if found is None:
        return "", ""
    kind = kind_of(next(iter(example.values())))
    shown, p = _signed(found.difference, kind, plus=True), ""
    if found.error is not None:
        shown += f" ± {format_figure(found.error, kind, unit=False)}"
    if found.left_out:
        shown += f" ({found.left_out} pair{'s' if found.left_out > 1 else ''} left out)"
    if found.p is None:
        p = f"– ({'too few pairs' if found.pairs < 2 else 'all equal'})"
    else:
        p = "<0.001" if found.p < 0.001 else f"{found.p:.3f}"
        p += "" if found.test == test else f" ({found.test})"
    return shown, p


def _signed(value: float, kind: Kind, *, plus: bool = False) -> str:
    """The value with a true minus sign; without a sign if it is shown as 0."""
    shown = format_figure(value, kind, sign=plus, unit=False)
    if not any(digit in "123456789" for digit in shown) and isfinite(value):
        return shown.lstrip("+-")
    return f"−{shown[1:]}" if shown.startswith("-") else shown
