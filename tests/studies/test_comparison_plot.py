"""The plots of `hirl compare`: what is drawn where."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from hirl.studies.comparison_plot import _difference_panel, write_plots
from hirl.terminal.figures import score, share


def test_differences_are_taken_within_pairs_and_pooled() -> None:
    """A seed that one arm lacks is left out; rows are the methods from top to bottom, then all methods."""
    found = {
        ("MoCoV2", "base"): {0: share(0.10), 1: share(0.20)},
        ("MoCoV2", "HIRL"): {0: share(0.12), 1: share(0.26)},
        ("DINO", "base"): {0: share(0.50), 1: share(0.40)},
        ("DINO", "HIRL"): {0: share(0.49)},
    }
    axes = Figure().subplots()
    _difference_panel(axes, "knn", found, ["base", "HIRL"])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["MoCoV2", "DINO", "all methods"]
    assert axes.yaxis.get_inverted()
    (bars,) = axes.containers
    assert isinstance(bars, ErrorbarContainer)
    middles, rows = np.asarray(bars.lines[0].get_data())
    assert middles.tolist() == pytest.approx([4, -1, (2 + 6 - 1) / 3])
    assert rows.tolist() == [0, 1, 2]
    dots = [np.sort(np.asarray(line.get_xdata(), dtype=float)).round(6).tolist() for line in axes.lines]
    assert [2, 6] in dots
    assert [-1, 2, 6] in dots
    assert axes.get_legend_handles_labels()[1] == ["HIRL − base"]


def test_a_figure_that_the_baseline_lacks_has_no_panel_of_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, list[tuple[str, str]]] = {}

    def note(plot: Figure, place: Path, **_: object) -> None:
        name = place.name.split(".")[1] if place.name.startswith(".") else place.name.split(".")[0]
        drawn[name] = [(axes.get_title(loc="left"), axes.get_xlabel()) for axes in plot.axes]
        Path(place).touch()

    own = "tree, dendrogram purity of the labels at 120 classes, run's own"
    figures = {
        "heights": {("A", "base"): {0: score(0.1)}, ("A", "HIRL"): {0: score(0.2)}},
        own: {("A", "base"): {}, ("A", "HIRL"): {0: share(0.2)}},
    }
    monkeypatch.setattr(Figure, "savefig", lambda self, opened, **_: note(self, Path(opened.name)))
    write_plots(tmp_path, figures)
    titles = [[title.replace("\n", " ") for title, _ in of] for of in drawn.values()]
    assert titles == [["heights", own], ["heights"]]
    assert [label for of in drawn.values() for _, label in of][-1] == "difference"


def test_figures_that_are_not_finite_are_not_drawn(tmp_path: Path) -> None:
    found = {
        ("MoCoV2", "base"): {0: share(0.10), 1: share(0.20), 2: share(0.30)},
        ("MoCoV2", "HIRL"): {0: share(0.12), 1: share(math.nan), 2: share(0.36)},
        ("DINO", "base"): {0: share(0.50)},
        ("DINO", "HIRL"): {0: share(math.nan)},
    }
    write_plots(tmp_path, {"knn": found})
    assert (tmp_path / "figures.png").stat().st_size > 1000
    axes = Figure().subplots()
    _difference_panel(axes, "knn", found, ["base", "HIRL"])
    (bars,) = axes.containers
    assert isinstance(bars, ErrorbarContainer)
    middles, rows = np.asarray(bars.lines[0].get_data())
    assert middles.tolist() == pytest.approx([4, 4])
    assert rows.tolist() == [0, 2]  # no row of DINO, which has no pair
