"""HIRL in Lightning: trees after every epoch, the same with two processes, and in the checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from hirl import PrototypeTree
from hirl.integrations.lightning import SemanticPathsCallback

from ..forked import as_torchrun
from .rank_of_a_trainer import IMAGES, LEVELS, Model, train

pytestmark = pytest.mark.filterwarnings("ignore")
TREE = "paths._extra_state"


def load(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "last.ckpt", weights_only=True)
    assert state["hirl_bank"] == []  # at the end of an epoch
    return state


def check_equal(one: dict[str, Any], other: dict[str, Any], *, tolerance: float) -> None:
    for name, weights in one["state_dict"].items():
        if name != TREE:
            torch.testing.assert_close(other["state_dict"][name], weights, rtol=tolerance, atol=tolerance)
    trees = [PrototypeTree.from_tensors(state["state_dict"][TREE]) for state in (one, other)]
    assert trees[0].levels == LEVELS
    assert torch.equal(trees[0].leaves, trees[1].leaves)
    assert trees[0].count == IMAGES


def test_two_processes_equal_one(tmp_path: Path, with_lightning: dict[str, str]) -> None:
    for processes in (1, 2):
        (tmp_path / str(processes)).mkdir()
        command = [sys.executable, "-m", "tests.integrations.rank_of_a_trainer", str(tmp_path / str(processes))]
        ranks = [
            subprocess.Popen(
                [*command, str(processes)], env=with_lightning | variables, stderr=subprocess.PIPE, text=True
            )
            for variables in (as_torchrun(2) if processes == 2 else [{}])
        ]
        for rank in ranks:
            _, errors = rank.communicate(timeout=240)
            assert rank.returncode == 0, errors
    check_equal(load(tmp_path / "1"), load(tmp_path / "2"), tolerance=1e-5)


def test_a_resumed_training_ends_the_same(tmp_path: Path) -> None:
    for name in ("whole_run", "half", "rest"):
        (tmp_path / name).mkdir()
    train(tmp_path / "whole_run", processes=1, epochs=3)
    train(tmp_path / "half", processes=1, epochs=2)
    train(tmp_path / "rest", processes=1, epochs=3, resume=tmp_path / "half" / "last.ckpt")
    check_equal(load(tmp_path / "whole_run"), load(tmp_path / "rest"), tolerance=0)


def test_the_bank_of_an_unfinished_epoch_is_in_the_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, processes=1, epochs=2, save_at=6)  # four steps per epoch
    bank = torch.load(tmp_path / "middle.ckpt", weights_only=True)["hirl_bank"]
    assert [tuple(rows.shape) for _, rows in bank] == [(16, 8), (16, 8)]
    assert len({*bank[0][0].tolist(), *bank[1][0].tolist()}) == 32
    callback = SemanticPathsCallback()
    callback.on_load_checkpoint(pl.Trainer(accelerator="cpu", logger=False), Model(), {"hirl_bank": bank})
    assert len(callback._kept) == 2


def test_an_interrupted_fit_leaves_nothing_behind() -> None:
    callback, model = SemanticPathsCallback(), Model()
    trainer = pl.Trainer(accelerator="cpu", logger=False, max_epochs=1)
    for _ in range(2):  # without a teardown in between, as after ctrl-C in a notebook
        callback.setup(trainer, model, "fit")
        model.paths(torch.randn(4, 8), torch.arange(4))
    assert len(callback._kept) == 1
    callback.teardown(trainer, model, "fit")
    model.paths(torch.randn(4, 8), torch.arange(4))
    assert len(callback._kept) == 1


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="start_epoch is 0, but must be at least 1"):
        SemanticPathsCallback(start_epoch=0)
    trainer = pl.Trainer(accelerator="cpu", logger=False, max_epochs=1)
    with pytest.raises(ValueError, match="LightningModule has 0 SemanticPaths, but must have one"):
        SemanticPathsCallback().setup(trainer, pl.LightningModule(), "fit")
