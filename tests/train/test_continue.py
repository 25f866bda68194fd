"""Continuing a run: what a checkpoint says about itself, and a run folder of an earlier version."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hirl import HierarchicalKMeans, Hierarchy, Run, pretrain
from hirl.methods import DINO
from hirl.runs.checkpoint import load_checkpoint

ALG_1 = HierarchicalKMeans(order="bottom-up")

OLD = Path(__file__).parents[1] / "runs" / "format_1" / "unfinished"


def test_a_checkpoint_carries_its_plan_and_levels(runs: dict[str, Run]) -> None:
    plan = {"epochs": 2, "steps_per_epoch": 3, "batch_size": 48, "image_size": 16, "channels": 3}
    for arm, levels in (("hirl", [24, 6]), ("base", None)):
        state = load_checkpoint(runs[arm].checkpoint_file)
        assert state["plan"] == plan
        assert state["levels"] == levels


@pytest.fixture
def old(picture_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The call that continues a copy of the old run folder, on the images it was trained on."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(picture_files, "shapes.npz")
    config = Run(shutil.copytree(OLD, "run")).config
    same = ("epochs", "batch_size", "seed", "channels", "precision", "accumulate")
    return {
        "data": config["data"],
        "method": DINO(**config["method"]["init_args"]),
        "hierarchy": Hierarchy(levels=(24, 6), negatives=5, start_epoch=1, bank_momentum=0, builder=ALG_1),
        "out": "run",
        "accelerator": "cpu",
        "devices": 1,
    } | {name: config[name] for name in same}


def test_a_run_of_an_earlier_version_continues(old: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    before = load_checkpoint(OLD / "last.ckpt")
    assert "plan" not in before
    run = pretrain(**old)
    assert f"continues at step {before['step']} of 9" in capsys.readouterr().out
    assert run.finished
    assert run.tree.levels == (24, 6)
    state = load_checkpoint(run.checkpoint_file)
    assert (state["step"], state["plan"]["steps_per_epoch"], state["levels"]) == (9, 3, [24, 6])


def test_a_run_of_an_earlier_version_keeps_its_clustering(old: dict[str, Any]) -> None:
    """Then there was Alg. 1 alone, over z⁰ of the last epoch, which is no longer the default."""
    settings: dict[str, Any] = {"levels": (24, 6), "negatives": 5, "start_epoch": 1}
    changed = r"\(hierarchy\.bank_momentum: 0\.0 → 0\.7; hierarchy\.builder\.init_args\.order: bottom-up → top-down\)"
    with pytest.raises(ValueError, match=rf"{changed}.*config\.yaml"):
        pretrain(**old | {"hierarchy": Hierarchy(**settings)})
    other = Hierarchy(**settings, bank_momentum=0, builder=replace(ALG_1, iterations=30))
    with pytest.raises(ValueError, match=r"\(hierarchy\.builder\.init_args\.iterations: 20 → 30\)"):
        pretrain(**old | {"hierarchy": other})
