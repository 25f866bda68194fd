"""A static figure of maps of features: one panel per run, with the same colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hirl.data.sources.escape import one_line
from hirl.explore.figure_style import FAINT, INK, METADATA, font_context
from hirl.explore.tsne import Colouring
from hirl.files import atomic_write

PANEL = 4.2  # inches
LEGEND = 24  # groups in the legend, at most


def group_colours(count: int) -> np.ndarray:
    """(count, 3): colours that are as distinct as possible for that many."""
    from matplotlib import colormaps

    if count <= 20:
        order = [*range(0, 20, 2), *range(1, 20, 2)]  # saturated colours first
        return colormaps["tab20"](order)[:count, :3]
    import colorsys

    return np.array(
        [colorsys.hls_to_rgb((i * 0.381966) % 1, (0.45, 0.55, 0.65)[i % 3], (0.5, 0.65)[i % 2]) for i in range(count)]
    )


def write_map_figure(
    file: Path, panels: Sequence[tuple[str, np.ndarray]], colouring: Colouring, *, algorithm: str
) -> None:
    """Draw the panels, each a title and coordinates (n, 2), to a .png, .svg or .pdf."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    legend = len(colouring.groups) <= LEGEND
    longest = max((len(name) for name in colouring.groups), default=0) if legend else 0
    wide = 0.55 + 0.075 * min(longest, 28) if legend else 0.1
    width, height = len(panels) * PANEL + wide, PANEL + 0.3
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    colours = group_colours(len(colouring.groups))
    of = colouring.of.numpy()
    # Drawn in shuffled order, so that no class covers all others.
    order = np.random.default_rng(0).permutation(len(of))
    with font_context():
        for number, (title, places) in enumerate(panels):
            axes = figure.add_axes((number * PANEL / width, 0, PANEL / width, PANEL / height))
            size = float(np.clip(30_000 / max(1, len(of)), 1.5, 14))
            x, y = places[order].T
            axes.scatter(x, y, c=colours[of[order]], s=size, linewidths=0, alpha=0.85, rasterized=len(of) > 3000)
            axes.set_xlim(-0.03, 1.03)
            axes.set_ylim(-0.03, 1.03)
            axes.axis("off")
            axes.set_title(one_line(title), fontsize=10, color=INK, parse_math=False, pad=4)
        if legend:
            for row, (name, shade) in enumerate(zip(colouring.groups, colours, strict=True)):
                y = 1 - (row + 1.5) * min(0.17, PANEL / (LEGEND + 2)) / height - 0.06
                x = (len(panels) * PANEL + 0.12) / width
                figure.text(x, y, "●", fontsize=8, color=shade, va="center")
                text = one_line(name)
                figure.text(
                    x + 0.16 / width, y, text if len(text) <= 28 else f"{text[:27]}…", fontsize=7.5, color=INK,
                    va="center", parse_math=False,
                )  # fmt: skip
        figure.text(0.005, 0.008, f"{algorithm}, {len(of):,} images, {colouring.name}", fontsize=6, color=FAINT)
        kind = file.suffix.lower()
        with atomic_write(file) as aside, aside.open("wb") as opened:
            figure.savefig(opened, format=kind[1:], dpi=200, metadata=METADATA[kind], facecolor="white")
