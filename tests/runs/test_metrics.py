"""Every figure that a run reports has its place: a chart, a column, the summary, or deliberately none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning_fabric
import pytest

from hirl import Hierarchy, Run, pretrain
from hirl.cli.main import main
from hirl.data import Shapes
from hirl.explore.run_page import arrange, run_curves
from hirl.runs.metrics import MARKS, METRICS, RECENT, find_metric, is_reserved, last_figures

from ..train import killed_run

DOCS = Path(__file__).parents[2] / "docs"
HIERARCHY = Hierarchy(levels=(8, 3), negatives=3, start_epoch=1)
# What the methods report of their own: a figure that is neither here nor in METRICS has no place.
LOGS = {
    "contrast_accuracy", "std", "code_entropy", "teacher_entropy", "class_loss", "patch_loss",
}  # fmt: skip


@pytest.fixture(scope="module")
def reporting(trained_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Labelled runs with a val split in both arms, a labelled one without it, an unlabelled one, one in float16."""
    folder = tmp_path_factory.mktemp("reporting")
    labelled = Shapes(images=48, size=16, cache=False)
    options: dict[str, Any] = {"epochs": 3, "batch_size": 16, "accelerator": "cpu", "devices": 1, "knn_every": 1}

    def train(name: str, data: Any, hierarchy: Hierarchy | None, method: str, **changes: Any) -> Run:
        return pretrain(data, killed_run.small(method), hierarchy, out=folder / name, **options | changes)

    runs = {arm: Run(place) for arm, place in trained_runs.items()}
    runs["labelled"] = train("labelled", labelled, HIERARCHY, "DINO")
    runs["unlabelled"] = train("unlabelled", labelled.pixels.numpy(), HIERARCHY, "SimSiam")
    for method in ("SwAV", "MoCoV3", "IBOT"):
        runs[method] = train(method, labelled, None, method, epochs=1, knn_every=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightning_fabric, "Fabric", lightning_fabric.Fabric)  # so that it is put back
        killed_run.use_float16()
        runs["half"] = train("half", labelled, None, "DINO")
    return runs


def names(run: Run) -> set[str]:
    return {name for line in run.metrics() for name in line} - set(MARKS)


def test_every_reported_figure_has_its_place(reporting: dict[str, Run]) -> None:
    reported: set[str] = set()
    for arm, run in reporting.items():
        curves = run_curves(list(run.metrics()))
        charts = {name: chart for chart, found in arrange(curves).items() for name in found}
        for name in names(run):
            metric = find_metric(name)
            assert metric in METRICS or name.removeprefix(RECENT) in LOGS | {"skipped"}, (arm, name)
            assert charts.get(name) == metric.chart, (arm, name)
            reported.add(metric.name.removeprefix(RECENT) if metric not in METRICS else metric.name)
    assert reported == {metric.name for metric in METRICS} | LOGS | {"skipped"}, "a metric that no run reports"


def test_names_are_not_used_twice() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert not any(map(is_reserved, LOGS))
    assert all(map(is_reserved, ("loss_spd", "knn_val_level_12", "recent_lr", "step", "lr")))
    about = [metric.about for metric in METRICS if metric.chart is not None]
    assert all(about)


def test_the_last_figures_are_those_of_the_summary(
    reporting: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = reporting["labelled"]
    figures = last_figures(run.metrics())
    assert set(figures) == {name for name in names(run) if not name.startswith(RECENT)}
    assert main(["show", str(run.folder)]) == 0
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[0]: " ".join(row[1:]) for row in rows if len(row) > 1}
    assert shown["knn_train_level_0"] == f"{100 * figures['knn_train_level_0']:.2f}%"
    assert shown["seconds_epoch"] == f"{figures['seconds_epoch']:.1f} s"
    assert shown["loss_spd"].endswith(f"{figures['loss_spd']:.4g}") or "→" in shown["loss_spd"]


def test_hirl_runs_has_a_column_for_every_metric_with_one(
    reporting: dict[str, Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["runs", str(reporting["labelled"].folder.parent)]) == 0
    printed = capsys.readouterr().out
    for column in {metric.column for metric in METRICS if metric.column is not None}:
        assert column in printed
    last = last_figures(reporting["labelled"].metrics())
    row = next(line for line in printed.splitlines() if "│ labelled " in line)
    for shown in (f"{last['loss_image']:.4f}", f"{last['loss_spd']:.4f}", f"{last['knn_train_level_0']:.1%}"):
        assert shown in row


def test_the_docs_explain_every_metric() -> None:
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    missing = [metric.name for metric in METRICS if f"`{metric.name.replace('{level}', 'N')}`" not in text]
    assert missing == []


def test_a_page_has_a_knn_chart(reporting: dict[str, Run]) -> None:
    """Of val images, or of training images where there is no val split."""
    for arm, prefix in (("hirl", "knn_val_level_"), ("labelled", "knn_train_level_")):
        run = reporting[arm]
        assert main(["show", str(run.folder), "--page"]) == 0
        page = (run.folder / "page" / "index.html").read_text(encoding="utf-8")
        data = json.loads(page.split('id="data">')[1].split("</script>")[0])
        chart = next(chart for chart in data["charts"] if chart["title"] == "KNN accuracy")
        assert {f"{prefix}{level}" for level in range(3)} < set(chart["curves"])
        assert chart["share"]
