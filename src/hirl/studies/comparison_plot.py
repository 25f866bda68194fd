"""A comparison as two plots, each with a panel per figure: the figures of every arm, and differences within pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import isfinite, isnan, nan
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from hirl.files import atomic_write
from hirl.studies.arms import BASE
from hirl.studies.paired import differences_of, mean_and_deviation, paired
from hirl.terminal.figures import Kind, kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL, COLUMNS = (3.1, 2.5), 3  # inches per panel, if its rows fit; panels side by side
COLOURS = ("#828993", "#2d6167", "#d99352", "#8f7bb0", "#c46f6c", "#6a9f76", "#5b83ad")
TITLE_WIDTH = 36  # characters per line
LONGEST_LABEL = 18  # characters; of a recipe's path the end tells it from others
Values = Mapping[int, float]  # seed → figure


def write_plots(
    folder: Path, figures: Mapping[str, Mapping[tuple[str, str], Values]], *, together: str = "all methods"
) -> None:
    """Write figures.png and differences.png, each also as PDF: `figures` by name, then by method and arm.

    Figures: points are means over seeds, bars one standard deviation if there are two seeds or more. Differences from
    the baseline within pairs: points are means, bars one standard error. Small dots are the seeds. Figures that are NaN
    or infinite are left out. `together`: the name of the row for the pairs of all methods.
    """
    arms = list(dict.fromkeys(arm for found in figures.values() for _, arm in found))
    _write(folder / "figures", figures, partial(_panel, arms=arms), PANEL[1])
    methods = dict.fromkeys(method for found in figures.values() for method, _ in found)
    height = max(PANEL[1], 0.7 + 0.13 * (len(methods) + 1) * (len(arms) - 1))
    paired_figures = {name: found for name, found in figures.items() if _has_pairs(found)}
    _write(
        folder / "differences",
        paired_figures or figures,
        partial(_difference_panel, arms=arms, together=together),
        height,
    )


def _write(
    place: Path,
    figures: Mapping[str, Mapping[tuple[str, str], Values]],
    draw: Callable[[Axes, str, Mapping[tuple[str, str], Values]], None],
    height: float,
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(figures) // COLUMNS)
    columns = min(COLUMNS, len(figures))
    plot = Figure(figsize=(PANEL[0] * columns, height * rows + 0.35), layout="constrained")
    FigureCanvasAgg(plot)
    for number, (name, found) in enumerate(figures.items(), start=1):
        draw(plot.add_subplot(rows, columns, number), name, found)
    handles, labels = plot.axes[0].get_legend_handles_labels()
    legend = plot.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False, fontsize=8)
    ticks = (tick for axes in plot.axes for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()))
    for text in (*legend.get_texts(), *ticks):
        text.set_parse_math(False)  # a recipe's name may contain $
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        with atomic_write(place.with_name(f"{place.name}.{kind}")) as aside, aside.open("wb") as opened:
            plot.savefig(opened, format=kind, dpi=200, metadata=metadata)


def _has_pairs(found: Mapping[tuple[str, str], Values]) -> bool:
    """Whether any arm has a finite difference from the baseline, which lacks figures such as those of a run's tree."""
    arms = ((method, values) for (method, arm), values in found.items() if arm != BASE)
    pairs = chain.from_iterable(differences_of(found.get((method, BASE), {}), values) for method, values in arms)
    return any(map(isfinite, pairs))


def _panel(axes: Axes, name: str, found: Mapping[tuple[str, str], Values], arms: Sequence[str]) -> None:
    methods = list(dict.fromkeys(method for method, _ in found))
    step = 0.7 / max(1, len(arms))
    shares = _are_shares(found)
    scale = 100 if shares else 1
    for number, arm in enumerate(arms):
        colour = COLOURS[number % len(COLOURS)]
        shift = (number - (len(arms) - 1) / 2) * step
        places, middles, spreads = [], [], []
        for place, method in enumerate(methods):
            values = [scale * float(value) for value in found.get((method, arm), {}).values() if isfinite(value)]
            if values:
                middle, spread = mean_and_deviation(values)
                places.append(place + shift)
                middles.append(middle)
                spreads.append(spread or 0.0)
                axes.plot([place + shift] * len(values), values, ".", color=colour, alpha=0.35, ms=4)
        bars: dict[str, Any] = {"yerr": spreads} if any(spreads) else {}
        axes.errorbar(places, middles, **bars, fmt="o", color=colour, ms=5, capsize=3, lw=1.2, label=arm)
    axes.set_xticks(range(len(methods)), map(_label, methods), fontsize=8)
    axes.set_xlim(-0.6, len(methods) - 0.4)
    axes.set_ylabel("%" if shares else "", fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    _finish(axes, name, lines="y")


def _difference_panel(
    axes: Axes, name: str, found: Mapping[tuple[str, str], Values], arms: Sequence[str], together: str = "all methods"
) -> None:
    """A row per method, and one for the pairs of all methods if there are several."""
    methods = list(dict.fromkeys(method for method, _ in found))
    shares = _are_shares(found)
    scale = 100 if shares else 1
    own = [arm for arm in arms if arm != BASE]
    step = 0.6 / max(1, len(own))
    for arm_number, arm in enumerate(own):
        colour = COLOURS[arms.index(arm) % len(COLOURS)]
        pairs = [differences_of(found.get((method, BASE), {}), found.get((method, arm), {})) for method in methods]
        if len(methods) > 1:
            pairs.append([pair for of_method in pairs for pair in of_method])
        pairs = [[scale * pair for pair in of_row] for of_row in pairs]
        rows, middles, errors = [], [], []
        for number, differences in enumerate(pairs):
            if (summary := paired(differences)) is not None and summary.pairs:
                row = number + (arm_number - (len(own) - 1) / 2) * step
                rows.append(row)
                middles.append(summary.difference)
                errors.append(nan if summary.error is None else summary.error)
                axes.plot(differences, [row] * len(differences), ".", color=colour, alpha=0.35, ms=3)
        bars: dict[str, Any] = {} if all(map(isnan, errors)) else {"xerr": errors}
        axes.errorbar(middles, rows, **bars, fmt="o", color=colour, ms=4, capsize=2, lw=1.2, label=f"{arm} − {BASE}")
    labels = [*map(_label, methods), *([together] if len(methods) > 1 else [])]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.axvline(0, color="#828993", lw=0.9)
    axes.set_xlabel("points" if shares else "difference", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    _finish(axes, name, lines="x")


def _are_shares(found: Mapping[tuple[str, str], Values]) -> bool:
    shown = [value for values in found.values() for value in values.values()]
    return bool(shown) and all(kind_of(value) is Kind.SHARE for value in shown)


def _label(method: str) -> str:
    return method if len(method) <= LONGEST_LABEL else f"…{method[1 - LONGEST_LABEL :]}"


def _finish(axes: Axes, name: str, *, lines: Literal["x", "y"]) -> None:
    axes.set_title("\n".join(wrap(name, TITLE_WIDTH)), fontsize=9, loc="left", parse_math=False)
    axes.grid(axis=lines, color="#e5e2da", lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
