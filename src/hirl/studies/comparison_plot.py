"""A comparison as a plot: one panel per figure, one point per method and arm, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from hirl.files import atomic_write
from hirl.terminal.figures import Kind, kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL, COLUMNS = (3.1, 2.5), 3  # inches per panel; panels side by side
COLOURS = ("#828993", "#2d6167", "#d99352", "#8f7bb0", "#c46f6c", "#6a9f76", "#5b83ad")
LONGEST_LABEL = 18  # characters; of a recipe's path the end tells it from others
Values = Mapping[int, float]  # seed → figure


def write_plot(folder: Path, figures: Mapping[str, Mapping[tuple[str, str], Values]]) -> None:
    """Write figures.png and figures.pdf: `figures` by name, then by method and arm.

    Points are means over seeds, bars one standard deviation if there are two seeds or more; small dots are the seeds.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(figures) // COLUMNS)
    columns = min(COLUMNS, len(figures))
    plot = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.35), layout="constrained")
    FigureCanvasAgg(plot)
    arms = list(dict.fromkeys(arm for found in figures.values() for _, arm in found))
    for place, (name, found) in enumerate(figures.items(), start=1):
        axes = plot.add_subplot(rows, columns, place)
        _panel(axes, name, found, arms)
    handles, labels = plot.axes[0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False, fontsize=8)
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        with atomic_write(folder / f"figures.{kind}") as aside, aside.open("wb") as opened:
            plot.savefig(opened, format=kind, dpi=200, metadata=metadata)


def _panel(axes: Axes, name: str, found: Mapping[tuple[str, str], Values], arms: Sequence[str]) -> None:
    methods = list(dict.fromkeys(method for method, _ in found))
    step = 0.7 / max(1, len(arms))
    shares = all(kind_of(value) is Kind.SHARE for values in found.values() for value in values.values())
    scale = 100 if shares else 1
    for number, arm in enumerate(arms):
        colour = COLOURS[number % len(COLOURS)]
        shift = (number - (len(arms) - 1) / 2) * step
        places, middles, spreads = [], [], []
        for place, method in enumerate(methods):
            values = [scale * float(value) for value in found.get((method, arm), {}).values()]
            if values:
                places.append(place + shift)
                middles.append(mean(values))
                spreads.append(stdev(values) if len(values) > 1 else 0.0)
                axes.plot([place + shift] * len(values), values, ".", color=colour, alpha=0.35, ms=4)
        bars: dict[str, Any] = {"yerr": spreads} if any(spreads) else {}
        axes.errorbar(places, middles, **bars, fmt="o", color=colour, ms=5, capsize=3, lw=1.2, label=arm)
    labels = [method if len(method) <= LONGEST_LABEL else f"…{method[-LONGEST_LABEL:]}" for method in methods]
    axes.set_xticks(range(len(methods)), labels, fontsize=8)
    axes.set_xlim(-0.6, len(methods) - 0.4)
    axes.set_title(name, fontsize=9, loc="left", parse_math=False)
    axes.set_ylabel("%" if shares else "", fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="#e5e2da", lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
