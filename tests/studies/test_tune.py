"""`hirl tune` scores the loss that was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hirl import Hierarchy, pretrain
from hirl.data import Shapes
from hirl.data.sources.image_set import Subset
from hirl.hierarchy import paths
from hirl.hierarchy.spd import spd_loss
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods import DINO, dino
from hirl.run import Run
from hirl.studies import tune
from hirl.studies.tune import LOSSES, held_out_loss
from hirl.train.epoch_trees import EpochTrees

OPTIONS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "accelerator": "cpu", "devices": 1, "knn_every": 0}
HIERARCHY = Hierarchy(levels=(8, 2), negatives=3, weight=0.25, start_epoch=1)


def small_dino() -> DINO:
    return DINO(
        backbone="vit_tiny_patch16_224",
        backbone_args={"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 2},
        dim=8,
        hidden=16,
        prototypes=32,
        local_crops=1,
        warmup_epochs=1,
        teacher_temperature=0.06,
        teacher_temperature_epochs=3,
    )


def parts(held: int) -> tuple[Subset, Subset]:
    """Images to score and images to train with."""
    images = Shapes(images=32 + held, size=16, cache=False)
    return Subset(images, torch.arange(held)), Subset(images, torch.arange(held, 32 + held))


class NotedLoss:
    """L_SPD, which keeps the size of each batch, its loss and its tree."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.losses: list[float] = []
        self.trees: list[PrototypeTree] = []

    def __call__(self, z: Any, tree: PrototypeTree, *arguments: Any, **others: Any) -> Any:
        loss = spd_loss(z, tree, *arguments, **others)
        self.sizes.append(len(z))
        self.losses.append(float(loss.detach()))
        self.trees.append(tree)
        return loss


def same(one: PrototypeTree, other: PrototypeTree) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.prototypes, other.prototypes, strict=True))


def test_the_score_is_the_loss_of_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its temperature, its negatives, its weight."""
    held, kept = parts(32)
    run = pretrain(kept, small_dino(), HIERARCHY, out=tmp_path / "run", **OPTIONS)

    temperatures, negatives, losses = [], [], []
    distillation = dino.distillation

    def noted_distillation(*arguments: Any, teacher_temperature: float, **others: Any) -> Any:
        temperatures.append(teacher_temperature)
        return distillation(*arguments, teacher_temperature=teacher_temperature, **others)

    def noted_spd_loss(*arguments: Any, **others: Any) -> Any:
        negatives.append(others["negatives"])
        losses.append(spd_loss(*arguments, **others))
        return losses[-1]

    monkeypatch.setattr(dino, "distillation", noted_distillation)
    monkeypatch.setattr(paths, "spd_loss", noted_spd_loss)
    found = held_out_loss(run, DINO, held, seed=0)
    assert temperatures == [0.06, 0.06]
    assert negatives == [3, 3]
    assert found["spd"] == pytest.approx(float(torch.stack(losses).mean()))
    assert found["joint"] == pytest.approx(found["image"] + 0.25 * found["spd"])
    assert held_out_loss(run, DINO, held, seed=0) == found  # from its file
    assert len(losses) == 2


def test_the_tree_is_that_of_the_last_epoch_and_every_image_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, kept = parts(37)  # two batches and an incomplete one
    training, scoring = NotedLoss(), NotedLoss()
    monkeypatch.setattr(paths, "spd_loss", training)
    run = pretrain(kept, small_dino(), HIERARCHY, out=tmp_path / "run", **OPTIONS)
    monkeypatch.setattr(paths, "spd_loss", scoring)
    found = held_out_loss(run, DINO, held, seed=0)
    assert all(same(tree, training.trees[-1]) for tree in scoring.trees)
    assert not same(run.tree, training.trees[-1])
    assert scoring.sizes == [16, 16, 5]
    mean = sum(size * loss for size, loss in zip(scoring.sizes, scoring.losses, strict=True)) / 37
    assert found["spd"] == pytest.approx(mean)


def test_a_run_killed_before_its_final_tree_gets_the_same_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, kept = parts(20)
    alone = pretrain(kept, small_dino(), HIERARCHY, out=tmp_path / "alone", **OPTIONS)
    build = EpochTrees.build

    def killed(self: EpochTrees, epoch: int, *features: Any) -> None:
        if epoch == self.epochs:
            raise KeyboardInterrupt
        build(self, epoch, *features)

    monkeypatch.setattr(EpochTrees, "build", killed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(kept, small_dino(), HIERARCHY, out=tmp_path / "killed", **OPTIONS)
    monkeypatch.setattr(EpochTrees, "build", build)
    expected = held_out_loss(alone, DINO, held, seed=0)
    unfinished = Run(tmp_path / "killed")
    assert held_out_loss(unfinished, DINO, held, seed=0) == expected
    text = (unfinished.folder / LOSSES).read_text()
    (unfinished.folder / LOSSES).write_text(text.replace('"joint": ', '"joint": 1', 1))
    with pytest.warns(UserWarning, match=r"losses.json' is damaged; the losses are computed again"):
        assert held_out_loss(unfinished, DINO, held, seed=0) == expected
    (unfinished.folder / LOSSES).unlink()
    continued = pretrain(kept, small_dino(), HIERARCHY, out=tmp_path / "killed", **OPTIONS)
    assert held_out_loss(continued, DINO, held, seed=0) == expected


def test_a_run_without_a_tree_does_not_win(tmp_path: Path) -> None:
    """L_img alone is less than any sum of two losses."""
    held, kept = parts(32)
    run = pretrain(kept, small_dino(), None, out=tmp_path / "run", **OPTIONS)
    with pytest.warns(UserWarning, match=r"never got a tree, so its losses do not count"):
        assert held_out_loss(run, DINO, held, seed=0)["joint"] == float("inf")


def test_the_score_is_computed_where_the_run_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Any] = []

    def noted(*_: Any, device: torch.device) -> dict[str, float]:
        devices.append(device)
        return {"joint": 1.0, "image": 1.0, "spd": 0.0}

    monkeypatch.setattr(tune, "pretrain", lambda *_, **__: Run(tmp_path / "run"))
    monkeypatch.setattr(tune, "held_out_loss", noted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 1))
    images = Shapes(images=60, size=16, cache=False)
    choices: dict[str, Any] = {"levels": [(8, 2)], "negatives": [3], "out": tmp_path}
    tune.tune(images, small_dino(), **choices)
    tune.tune(images, small_dino(), accelerator="cpu", **choices)
    assert devices == [torch.device("cuda"), torch.device("cpu")]
