"""Continuing a run: what a checkpoint says about itself, and its reports."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hirl import Hierarchy, Run, pretrain
from hirl.data import Shapes
from hirl.methods import DINO
from hirl.runs.checkpoint import load_checkpoint
from hirl.signals import Stopped
from hirl.train.epoch_trees import EpochTrees
from hirl.train.loop import Loop


def test_a_checkpoint_carries_its_plan_and_levels(runs: dict[str, Run]) -> None:
    plan = {"epochs": 2, "steps_per_epoch": 3, "batch_size": 48, "image_size": 16, "channels": 3, "accumulate": 1}
    for arm, levels in (("hirl", [24, 6]), ("base", None)):
        state = load_checkpoint(runs[arm].checkpoint_file)
        assert state["plan"] == plan
        assert state["levels"] == levels


class Killed(BaseException):
    """Ends a run at once, as a kill does: nothing is saved on the way out."""


def kill_after_tree(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """Kill the run when the tree of an epoch, counted from 0, has been built."""
    build = EpochTrees.build

    def built(self: EpochTrees, number: int, *features: Any) -> None:
        build(self, number, *features)
        if number == epoch:
            raise Killed

    monkeypatch.setattr(EpochTrees, "build", built)


def kill_in(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[[Loop], bool], *, after: bool = False) -> None:
    """Kill the run in a method of its loop, before or after its work."""
    original = getattr(Loop, name)

    def work(self: Loop, *arguments: Any) -> Any:
        if not after and when(self):
            raise Killed
        result = original(self, *arguments)
        if after and when(self):
            raise Killed
        return result

    monkeypatch.setattr(Loop, name, work)


def ask_to_stop(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    step = Loop._step

    def asked(self: Loop, *arguments: Any) -> Any:
        if self.step == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(Loop, "_step", asked)


ENDS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "in the first step with a tree": lambda patch: kill_in(patch, "_step", lambda loop: loop.step == 3),
    "in the second step of a later tree": lambda patch: kill_in(patch, "_step", lambda loop: loop.step == 7),
    "after a tree": lambda patch: kill_after_tree(patch, epoch=2),
    "before the state of an epoch": lambda patch: kill_in(patch, "save", lambda loop: loop.step == 6),
    "asked to stop at the end of an epoch": lambda patch: ask_to_stop(patch, 5),
    "before the state with the final tree": lambda patch: kill_in(patch, "save", lambda loop: loop.finished),
    "after the final tree": lambda patch: kill_in(patch, "finish", lambda loop: loop.finished, after=True),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hirl.train.report.EVERY_SECONDS", math.inf)
        return pretrain(**short(tmp_path_factory.mktemp("undisturbed") / "run"))


def short(out: Path) -> dict[str, Any]:
    """Three epochs of three steps; the first has no tree."""
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 2}
    head: dict[str, Any] = {"dim": 16, "hidden": 16, "prototypes": 32, "local_crops": 0}
    options: dict[str, Any] = {"epochs": 3, "batch_size": 16, "knn_every": 1, "accelerator": "cpu", "devices": 1}
    return options | {
        "data": Shapes(images=48, size=16, cache=False),
        "method": DINO(backbone="vit_tiny_patch16_224", backbone_args=small, **head),
        "hierarchy": Hierarchy(levels=(8, 3), negatives=3, start_epoch=1),
        "out": out,
    }


def reports(run: Run) -> list[tuple[float, set[str]]]:
    return [(line["step"], set(line)) for line in run.metrics()]


@pytest.mark.parametrize("end", ENDS)
def test_a_continued_run_reports_everything_once(
    end: str, undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hirl.train.report.EVERY_SECONDS", math.inf)  # or a busy machine makes more reports
    with monkeypatch.context() as patch:
        ENDS[end](patch)
        with pytest.raises((Killed, Stopped)):
            pretrain(**short(tmp_path / "run"))
    run = pretrain(**short(tmp_path / "run"))
    assert reports(run) == reports(undisturbed)
    moved = [[line["moved_leaves"] for line in one.metrics() if "moved_leaves" in line] for one in (run, undisturbed)]
    assert moved[0] == moved[1] != []


def test_a_finished_run_that_is_repaired_reports_its_end_once(undisturbed: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(undisturbed.folder, tmp_path / "run")
    (folder / "encoder.safetensors").unlink()
    run = pretrain(**short(folder))
    assert run.encoder_file.is_file()
    assert reports(run) == reports(undisturbed)
