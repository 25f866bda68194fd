"""A method refuses wrong arguments in one sentence, through the command's entry point."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hirl.cli.main import main

from ..small_methods import small_arguments

NO_PATCHES = "has no patches to hide: choose a plain vision transformer"

MISTAKES = [
    ("MoCoV2", "--method.queue_length 40", "queue_length is 40, but must be a multiple of the batch of 16 images"),
    ("MoCoV2", "--method.lr -1", "lr is -1.0, but must be at least 0"),
    ("MoCoV2", "--method.warmup_epochs -1", "warmup_epochs is -1.0, but must be at least 0"),
    ("SimSiam", "--method.dim -1", "dim is -1, but must be at least 1"),
    ("SimSiam", "--method.dim 2.5", "--method.dim is 2.5, but must be a whole number"),
    ("SimSiam", "--method.hidden 0", "hidden is 0, but must be at least 1"),
    ("SimSiam", "--method.predictor_hidden 0", "predictor_hidden is 0, but must be at least 1"),
    ("SimSiam", "--method.lr -0.1", "lr is -0.1, but must be at least 0"),
    ("SimSiam", "--method.lr fast", "--method.lr is fast, but must be a number"),
    ("SimSiam", "--method.weight_decay -1", "weight_decay is -1.0, but must be at least 0"),
    ("SimSiam", "--method.sgd_momentum 1.5", "sgd_momentum is 1.5, but must be between 0 and 1"),
    ("SimSiam", "--batch_size 1", "batch_size is 1, but must be at least 2"),
    ("SimSiam", "--method.temperature 0.1", "there is no option --method.temperature"),
    ("SimSiam", '--method.backbone_args {"img_size":32}', "backbone 'resnet10t' cannot be made with"),
    ("SwAV", "--method.queue_length 40", "queue_length is 40, but must be a multiple of the batch of 16 images"),
    ("SwAV", "--method.queue_epoch -1", "queue_epoch is -1, but must be at least 0"),
    ("SwAV", "--method.epsilon 0.001", "epsilon is 0.001, but must be at least 0.025"),
    ("SwAV", "--method.temperature 0", "temperature is 0.0, but must be above 0"),
    ("SwAV", "--method.prototypes 1", "prototypes is 1, but must be at least 2"),
    ("SwAV", "--method.iterations 0", "iterations is 0, but must be at least 1"),
    ("SwAV", "--method.dim -1", "dim is -1, but must be at least 1"),
    ("SwAV", "--method.hidden 0", "hidden is 0, but must be at least 1"),
    ("SwAV", "--method.local_crops -1", "local_crops is -1, but must be at least 0"),
    ("SwAV", "--method.local_size -8", "local_size is -8, but must be at least 1"),
    ("SwAV", "--method.start_lr -1", "start_lr is -1.0, but must be at least 0"),
    ("SwAV", "--method.final_lr -1", "final_lr is -1.0, but must be at least 0"),
    ("SwAV", "--batch_size 1", "batch_size is 1, but must be at least 2"),
    ("MoCoV3", "--method.backbone resnet18 --method.backbone_args null", "is not a plain vision transformer"),
    ("MoCoV3", "--image_size 0", "image_size is 0, but must be at least 8"),
    ("MoCoV3", "--image_size 30", "views of 30 pixels do not consist of whole patches of 8 pixels"),
    ("MoCoV3", "--method.temperature -1", "temperature is -1.0, but must be above 0"),
    ("MoCoV3", "--method.momentum 1.1", "momentum is 1.1, but must be between 0 and 1"),
    ("MoCoV3", "--method.weight_decay -1", "weight_decay is -1.0, but must be at least 0"),
    ("MoCoV3", "--method.warmup_epochs -2", "warmup_epochs is -2.0, but must be at least 0"),
    ("MoCoV3", "--batch_size 1", "batch_size is 1, but must be at least 2"),
    ("DINO", "--method.backbone resnet18 --method.backbone_args null", "'resnet18' has batch norm, but DINO takes"),
    ("DINO", "--method.hidden -1", "hidden is -1, but must be at least 1"),
    ("DINO", "--method.frozen_epochs -1", "frozen_epochs is -1.0, but must be at least 0"),
    ("IBOT", "--method.backbone resnet18 --method.backbone_args null", NO_PATCHES),
    ("IBOT", "--method.backbone convnext_atto --method.backbone_args null", NO_PATCHES),
    ("IBOT", "--image_size 30", "views of 30 pixels do not consist of whole patches of 8 pixels"),
    ("IBOT", "--method.local_size 12", "views of 12 pixels do not consist of whole patches of 8 pixels"),
    ("IBOT", "--method.local_size 0", "local_size is 0, but must be at least 1"),
    ("IBOT", "--method.local_crops -1", "local_crops is -1, but must be at least 0"),
    ("IBOT", "--method.prototypes -1", "prototypes is -1, but must be at least 2"),
    ("IBOT", "--method.dim 0", "dim is 0, but must be at least 1"),
    ("IBOT", "--method.hidden 0", "hidden is 0, but must be at least 1"),
    ("IBOT", "--method.student_temperature 0", "student_temperature is 0.0, but must be above 0"),
    ("IBOT", "--method.teacher_temperature_epochs -1", "teacher_temperature_epochs is -1, but must be at least 0"),
    ("IBOT", "--method.centre_momentum 2", "centre_momentum is 2.0, but must be between 0 and 1"),
    ("IBOT", "--method.drop_path 1", "drop_path is 1.0, but must be at least 0 and below 1"),
    ("IBOT", "--method.clip 0", "clip is 0.0, but must be above 0"),
    ("IBOT", "--method.final_lr -1", "final_lr is -1.0, but must be at least 0"),
    ("IBOT", "--method.final_weight_decay -1", "final_weight_decay is -1.0, but must be at least 0"),
    ("IBOT", "--method.shared_head maybe", "--method.shared_head is maybe, but must be true or false"),
]


@pytest.mark.parametrize(("method", "mistake", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(
    method: str, mistake: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, config = tmp_path / "images.npz", tmp_path / "method.yaml"
    np.savez(images, images=np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8))
    chosen = {"class_path": f"hirl.methods.{method}", "init_args": small_arguments(method)}
    options = {"method": chosen, "hierarchy": None, "epochs": 1, "batch_size": 16, "accelerator": "cpu", "devices": 1}
    config.write_text(json.dumps(options))  # which is YAML, too

    code = main(["pretrain", str(images), "--config", str(config), *mistake.split(" "), "--out", str(tmp_path / "run")])

    shown = capsys.readouterr()
    assert code == 2, shown.out
    (line,) = shown.err.strip().splitlines()
    assert line.startswith("hirl: ")
    assert sentence in line
    assert not list((tmp_path / "run").glob("*.ckpt"))
