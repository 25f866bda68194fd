"""A HIRL run that starts from a baseline's stage one ends in the same bits as one that trains it itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hirl.data import Shapes
from hirl.hierarchy.settings import Hierarchy
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint
from hirl.train.pretrain import pretrain

from ..small_methods import METHODS, small_arguments

IMAGES = Shapes(images=100, size=16, cache=False)
SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 16, "accelerator": "cpu", "devices": 1, "knn_every": 0}


def train(method: str, out: Path, hierarchy: Hierarchy | None, **more: Any) -> Run:
    return pretrain(
        IMAGES,
        METHODS[method](**small_arguments(method, size=16, local_crops=2)),
        hierarchy,
        out=out,
        **SETTINGS | more,
    )


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


def losses(run: Run) -> list[tuple[int, float, float | None]]:
    return [(line["step"], line["loss_image"], line.get("loss_spd")) for line in run.metrics() if "loss_image" in line]


@pytest.mark.parametrize("method", ["MoCoV2", "DINO"])
def test_forked_arms_end_in_the_bits_of_arms_trained_alone(method: str, tmp_path: Path) -> None:
    base = train(method, tmp_path / "base", None, fork_at=(1, 2))
    plain = train(method, tmp_path / "plain", None)
    assert_same(load_checkpoint(base.checkpoint_file)["joint"], load_checkpoint(plain.checkpoint_file)["joint"])
    arms = (
        Hierarchy(levels=(12, 4), negatives=5, start_epoch=1),
        Hierarchy(levels=(20, 6, 2), negatives=3, start_epoch=2, weight=3.0, head_layers=1),
        Hierarchy(levels=(12, 4), negatives=5, start_epoch=3),  # the state of epoch 2 and one more epoch of stage one
        Hierarchy(levels=(12, 4), negatives=5, start_epoch=2, features="pass"),
    )
    for place, hierarchy in enumerate(arms):
        forked = train(method, tmp_path / f"forked {place}", hierarchy, stage_one=base.folder)
        alone = train(method, tmp_path / f"alone {place}", hierarchy)
        assert_same(load_checkpoint(forked.checkpoint_file), load_checkpoint(alone.checkpoint_file))
        assert_same(forked.encoder_weights()[0], alone.encoder_weights()[0])
        assert torch.equal(forked.tree.leaves, alone.tree.leaves)
        assert forked.config == alone.config
        assert losses(forked)[0] == losses(base)[0]
        assert forked.finished
        assert "stage one" in forked.log_file.read_text()


def test_a_forked_run_killed_before_its_first_step_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = train("MoCoV2", tmp_path / "base", None, fork_at=(2,))
    hierarchy = Hierarchy(levels=(12, 4), negatives=5, start_epoch=2)
    alone = train("MoCoV2", tmp_path / "alone", hierarchy)
    with monkeypatch.context() as patch:
        patch.setattr("hirl.train.epoch_trees.EpochTrees.build", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train("MoCoV2", tmp_path / "forked", hierarchy, stage_one=base.folder)
    forked = train("MoCoV2", tmp_path / "forked", hierarchy)  # its own state: the baseline is no longer needed
    assert_same(load_checkpoint(forked.checkpoint_file), load_checkpoint(alone.checkpoint_file))


def test_what_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    hierarchy = Hierarchy(levels=(12, 4), negatives=5, start_epoch=2)
    base = train("MoCoV2", tmp_path / "base", None, epochs=3)
    late = train("MoCoV2", tmp_path / "late", None, epochs=3, fork_at=(2,))
    out = tmp_path / "arm"
    with pytest.raises(ValueError, match="has kept no state of epoch 2 or before"):
        train("MoCoV2", out, hierarchy, epochs=3, stage_one=base.folder)
    with pytest.raises(ValueError, match=r"seed: 0 → 1.*but for the hierarchy"):
        train("MoCoV2", out, hierarchy, epochs=3, seed=1, stage_one=late.folder)
    arm = train("MoCoV2", tmp_path / "forked", hierarchy, epochs=3, stage_one=late.folder)
    with pytest.raises(ValueError, match="starts from a baseline's stage one"):
        train("MoCoV2", out, hierarchy, epochs=3, stage_one=arm.folder)
    with pytest.raises(ValueError, match=r"there is no run folder '.*nowhere'"):
        train("MoCoV2", out, hierarchy, epochs=3, stage_one=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="a baseline has only one stage"):
        train("MoCoV2", out, None, stage_one=base.folder)
    with pytest.raises(ValueError, match="fork_at needs a baseline"):
        train("MoCoV2", out, hierarchy, fork_at=(2,))
    with pytest.raises(ValueError, match="fork_at is 4, but must be epochs from 1 to 3"):
        train("MoCoV2", out, None, fork_at=(4,))
