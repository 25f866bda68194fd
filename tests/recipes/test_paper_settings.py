"""The ImageNet recipes: every value as in the paper's tables, the size of the networks, and two real steps."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hirl
from hirl import Run
from hirl.methods.base import Method, Plan

IMAGES = 1_281_167


@dataclass(frozen=True)
class Row:
    """A method's lines of the paper's tables (settings, search results, training configurations, running time)."""

    method: str
    backbone: str
    dim: int
    levels: tuple[int, int, int]
    negatives: int
    head_layers: int
    start_epoch: int
    epochs: int
    batch_size: int
    optimiser: str
    first_lr: float  # of the first step
    peak_lr: float
    last_lr: float
    warmup_epochs: int
    weight_decay: tuple[float, float]  # at the first and at the last step
    sizes: tuple[int, ...]  # of the views
    arguments: dict[str, Any]  # all others of the method; learning rates are for 256 images
    assign: str = "stored"


DISTILLED = {
    "student_temperature": 0.1,
    "teacher_temperature_start": 0.04,
    "teacher_temperature": 0.07,
    "teacher_temperature_epochs": 50,
    "centre_momentum": 0.9,
    "teacher_momentum": 0.996,
    "frozen_epochs": 3,
    "drop_path": 0.1,
    "clip": 0.3,
    "hidden": 2048,
    "head_batch_norm": False,
    "local_crops": 10,
    "local_size": 96,
    "lr": 3e-3 / 4,
    "final_lr": 2e-6,
    "warmup_epochs": 10,
    "weight_decay": 0.04,
    "final_weight_decay": 0.4,
}
FINE, BROAD = (30000, 10000, 1000), (30000, 10000, 5000)
PAIR, SIX, TEN = (224,) * 2, (224,) * 2 + (96,) * 6, (224,) * 2 + (96,) * 10
VIT = "vit_base_patch16_224"
# fmt: off
PAPER = {
    "moco_v2": Row("MoCoV2", "resnet50", 128, FINE, 1000, 2, 20, 200, 256, "SGD", 0.03, 0.03, 0.0, 0, (1e-4, 1e-4),
                   PAIR, {"queue_length": 65536, "momentum": 0.999, "temperature": 0.2, "sgd_momentum": 0.9,
                          "hidden": None, "bn_splits": 8, "lr": 0.03, "weight_decay": 1e-4, "warmup_epochs": 0}),
    "simsiam": Row("SimSiam", "resnet50", 2048, FINE, 1000, 2, 20, 200, 512, "SGD", 0.1, 0.1, 0.0, 0, (1e-4, 1e-4),
                   PAIR, {"predictor_hidden": 512, "sgd_momentum": 0.9, "hidden": None, "lr": 0.05,
                          "weight_decay": 1e-4, "warmup_epochs": 0}),
    "swav": Row("SwAV", "resnet50", 128, FINE, 1000, 2, 20, 200, 4096, "LARS", 0.3, 4.8, 4.8e-3, 10, (1e-6, 1e-6),
                SIX, {"prototypes": 3000, "epsilon": 0.05, "iterations": 3, "temperature": 0.1, "frozen_epochs": 1,
                      "queue_length": 0, "queue_epoch": 15, "hidden": 2048, "head_batch_norm": False,
                      "local_crops": 6, "local_size": 96, "sgd_momentum": 0.9, "lr": 4.8 / 16, "start_lr": 0.3 / 16,
                      "final_lr": 4.8e-3 / 16, "warmup_epochs": 10, "weight_decay": 1e-6}, "step"),
    "moco_v3": Row("MoCoV3", VIT, 256, BROAD, 100, 5, 20, 400, 4096, "AdamW", 0.0, 1.6e-3, 0.0, 40, (0.1, 0.1),
                   PAIR, {"momentum": 0.99, "temperature": 0.2, "hidden": 4096, "lr": 1.6e-3 / 16, "warmup_epochs": 40,
                          "weight_decay": 0.1}),
    "dino": Row("DINO", VIT, 256, BROAD, 100, 2, 40, 400, 1024, "AdamW", 0.0, 3e-3, 2e-6, 10, (0.04, 0.4),
                TEN, {"prototypes": 65536} | DISTILLED),
    "ibot": Row("IBOT", VIT, 256, FINE, 100, 2, 40, 400, 1024, "AdamW", 0.0, 3e-3, 2e-6, 10, (0.04, 0.4),
                TEN, {"prototypes": 8192, "shared_head": True, "separate_patch_head": False} | DISTILLED),
}
# fmt: on
SIZES = {"resnet50": (23_508_032, (2, 2048)), VIT: (85_798_656, (2, 768))}  # parameters, shape of two features


def planned(method: Method, row: Row, epochs: int) -> Plan:
    """Enough of a build to ask for rates, without the networks."""
    method.plan = Plan(epochs, IMAGES // row.batch_size, row.batch_size, 224)
    return method.plan


@pytest.mark.parametrize("name", PAPER)
def test_every_value_is_the_papers(name: str) -> None:
    row, options = PAPER[name], hirl.recipe(f"imagenet/{name}")
    method, hierarchy = options["method"], options["hierarchy"]
    assert type(method).__name__ == row.method
    network = {"backbone": row.backbone, "backbone_args": None, "dim": row.dim}
    assert method.arguments == network | row.arguments
    assert hierarchy.resolve(IMAGES, row.epochs).levels == row.levels
    assert (options["epochs"], options["batch_size"], options["image_size"]) == (row.epochs, row.batch_size, 224)
    assert options.keys() == {"method", "hierarchy", "epochs", "batch_size", "image_size"}
    assert tuple(view.size for view in method.views(224)) == row.sizes


@pytest.mark.parametrize("name", PAPER)
def test_every_setting_of_the_hierarchy_is_the_papers(name: str) -> None:
    row, hierarchy = PAPER[name], hirl.recipe(f"imagenet/{name}")["hierarchy"]
    settings = {field.name: getattr(hierarchy.resolve(IMAGES, row.epochs), field.name) for field in fields(hierarchy)}
    builder = settings.pop("builder")
    settings.pop("bank_momentum")  # has no effect without the bank
    settings.pop("temperature")  # has no effect on the loss of paths
    assert settings == {
        "levels": row.levels,
        "loss": "paths",  # Eq. 3
        "negatives": row.negatives,
        "start_epoch": row.start_epoch,
        "head_layers": row.head_layers,
        "weight": 1.0,  # Eq. 4
        "features": "pass",  # Alg. 2
        "assign": row.assign,
        "rebuild": True,
    }
    assert isinstance(builder, hirl.HierarchicalKMeans)
    assert (builder.order, builder.weighted) == ("bottom-up", False)  # Alg. 1


@pytest.mark.parametrize("name", PAPER)
def test_rates_run_as_in_the_paper(name: str) -> None:
    row, options = PAPER[name], hirl.recipe(f"imagenet/{name}")
    method = options["method"]
    plan = planned(method, row, row.epochs)
    assert method.peak_lr == pytest.approx(row.peak_lr)
    assert method.rates(0).lr == pytest.approx(row.first_lr)
    assert method.rates(row.warmup_epochs * plan.steps_per_epoch).lr == pytest.approx(row.peak_lr)
    assert method.rates(plan.steps).lr == pytest.approx(row.last_lr)
    assert max(method.rates(step).lr for step in range(0, plan.steps, 997)) <= row.peak_lr * 1.000001
    decays = method.rates(0).weight_decay, method.rates(plan.steps).weight_decay
    assert decays == pytest.approx(row.weight_decay)
    optimiser = method.optimiser([{"params": [torch.nn.Parameter(torch.zeros(2))]}])
    assert type(optimiser).__name__ == row.optimiser
    if row.optimiser == "AdamW":
        assert optimiser.defaults["betas"] == (0.9, 0.999)


def test_swav_for_800_epochs_starts_its_tree_after_80() -> None:
    assert hirl.recipe("imagenet/swav")["hierarchy"].resolve(IMAGES, 800).start_epoch == 80


@pytest.mark.parametrize("name", PAPER)
def test_the_network_has_its_full_size(name: str) -> None:
    """Built without memory for its weights."""
    method, row = hirl.recipe(f"imagenet/{name}")["method"], PAPER[name]
    with torch.device("meta"):
        method.build(Plan(row.epochs, IMAGES // row.batch_size, row.batch_size, 224))
        features = method.encoder.eval()(torch.empty(2, 3, 224, 224))
    weights = sum(weight.numel() for weight in method.encoder.parameters())
    assert (weights, tuple(features.shape)) == SIZES[row.backbone]


def two_steps(name: str, folder: Path, backbone_args: dict[str, Any] | None) -> Run:
    """One with L_img alone and one with a tree, of as few images as batch norm and the queue allow."""
    options = hirl.recipe(f"imagenet/{name}")
    method = options["method"]
    method.backbone_args = backbone_args
    if "bn_splits" in method.arguments:
        method.bn_splits = 1
    count = 4 if PAPER[name].backbone == "resnet50" else 2
    pictures = np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    hierarchy = replace(options["hierarchy"], levels=(2,), start_epoch=1)
    changed = {"hierarchy": hierarchy, "epochs": 2, "batch_size": count, "accelerator": "cpu", "knn_every": 0}
    run = hirl.pretrain(pictures, **options | changed, out=folder / "run", workers=0)
    assert run.finished
    losses = [line for line in run.metrics() if "loss_image" in line]
    assert "loss_spd" not in losses[0]
    assert losses[1]["loss_spd"] > 0
    return run


@pytest.mark.parametrize("name", PAPER)
def test_two_steps(name: str, tmp_path: Path) -> None:
    """With the views and heads of the recipe, and one block of each kind in place of all."""
    two_steps(name, tmp_path, {"layers": [1, 1, 1, 1]} if PAPER[name].backbone == "resnet50" else {"depth": 1})


@pytest.mark.long
@pytest.mark.parametrize("name", PAPER)
def test_two_steps_at_full_size(name: str, tmp_path: Path) -> None:
    run = two_steps(name, tmp_path, None)
    assert sum(weight.numel() for weight in run.encoder.parameters()) == SIZES[PAPER[name].backbone][0]
