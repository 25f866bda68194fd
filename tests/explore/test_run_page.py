"""The page of a run: curves, warnings, configuration."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hirl import Run
from hirl.cli.main import main
from hirl.explore.run_page import arrange, run_curves, run_warnings


def data_of(page: Path) -> dict[str, object]:
    return json.loads(page.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])


def test_a_page_of_curves(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs["hirl"].folder
    assert main(["show", str(folder), "--page"]) == 0
    assert "Page written to" in capsys.readouterr().out
    data = data_of(folder / "page" / "index.html")
    charts = {chart["title"]: chart for chart in data["charts"]}  # type: ignore[attr-defined]
    assert {"Losses", "Effective rank", "Largest nodes", "Learning rate"} <= set(charts)
    lines = list(runs["hirl"].metrics())
    expected = [line["loss_image"] for line in lines if "loss_image" in line]
    assert charts["Losses"]["curves"]["loss_image"][1] == pytest.approx(expected, rel=1e-5)
    assert "batch_size: 48" in str(data["config"])
    assert main(["show", str(folder.parent / "nowhere"), "--page"]) == 2


def test_curves_are_thinned_and_arranged() -> None:
    lines: list[dict[str, float]] = [
        {"step": step, "epoch": step / 100, "loss_image": 1.0, "new": 2.0, "recent_new": 2.0, "lr": math.nan}
        for step in range(5000)
    ]
    lines[-1] |= {"finished": True, "loss_spd": 3.0, "seconds_epoch": 4.0}
    curves = run_curves(lines)
    assert len(curves["loss_image"][0]) == 600
    assert curves["loss_image"][1] == [1.0] * 600
    assert curves["loss_image"][0] == sorted(curves["loss_image"][0])
    assert curves["loss_spd"] == [[49.99], [3.0]]
    assert {chart.title: set(found) for chart, found in arrange(curves).items()} == {
        "Losses": {"loss_image", "loss_spd"},
        "new": {"new"},  # of the method
    }


def test_warnings_are_counted(runs: dict[str, Run]) -> None:
    run = runs["base"]
    for share in (51, 60):
        run.log(f"warning: a node of level 0 holds {share}% of all images; use fewer nodes")
    run.log("epoch 3: fine")
    (warning,) = run_warnings(run)
    assert warning["text"].startswith("a node of level 0 holds 60%")
    assert warning["count"] == 2
