"""`hirl tune` scores the loss that was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hirl import Hierarchy, pretrain
from hirl.data import Shapes
from hirl.data.sources.subset import Subset
from hirl.hierarchy import paths
from hirl.hierarchy.spd import spd_loss
from hirl.methods import DINO, dino
from hirl.studies.tune import LOSSES, held_out_loss


def test_the_score_is_the_loss_of_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its temperature, its negatives, its weight; a score of an earlier version, which had none of them, is redone."""
    images = Shapes(images=64, size=16, cache=False)
    held, kept = (Subset(images, part) for part in torch.arange(64).split(32))
    method = DINO(
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
    hierarchy = Hierarchy(levels=(8, 2), negatives=3, weight=0.25, start_epoch=1)
    options: dict[str, Any] = {"epochs": 3, "batch_size": 16, "accelerator": "cpu", "devices": 1}
    run = pretrain(kept, method, hierarchy, out=tmp_path / "run", **options)
    (run.folder / LOSSES).write_text(json.dumps({"joint": 3.0, "image": 2.0, "spd": 1.0}))

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
    assert found["spd"] == pytest.approx(0.25 * float(torch.stack(losses).mean()))
    assert found["joint"] == pytest.approx(found["image"] + found["spd"])
    assert held_out_loss(run, DINO, held, seed=0) == found  # from its file
    assert len(losses) == 2
