"""The methods at a size for tests, and the steps of a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hirl.methods.base import Plan

PLAN = Plan(epochs=16, steps_per_epoch=4, batch_size=16, image_size=32)

SMALL: dict[str, dict[str, Any]] = {
    "MoCoV2": {
        "backbone": "resnet10t",
        "backbone_args": {"channels": [8, 8, 16, 16]},
        "dim": 12,
        "queue_length": 32,
        "momentum": 0.9,
        "bn_splits": 2,
        "lr": 0.3,
    },
    "SimSiam": {
        "backbone": "resnet10t",
        "backbone_args": {"channels": [8, 8, 16, 16]},
        "dim": 24,
        "predictor_hidden": 6,
        "lr": 0.8,
    },
    "MoCoV3": {
        "backbone": "vit_tiny_patch16_224",
        "backbone_args": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
        "dim": 24,
        "hidden": 48,
        "momentum": 0.9,
        "warmup_epochs": 0.5,
        "lr": 0.03,
    },
    "DINO": {
        "backbone": "vit_tiny_patch16_224",
        "backbone_args": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
        "dim": 64,
        "hidden": 48,
        "prototypes": 40,
        "local_crops": 3,
        "frozen_epochs": 0.25,
        "teacher_temperature": 0.05,
        "teacher_temperature_epochs": 2,
        "teacher_momentum": 0.9,
        "warmup_epochs": 0.5,
        "lr": 0.03,
    },
    "SwAV": {
        "backbone": "resnet10t",
        "backbone_args": {"channels": [8, 8, 16, 16]},
        "dim": 24,
        "hidden": 32,
        "prototypes": 40,
        "local_crops": 2,
        "queue_length": 32,
        "queue_epoch": 1,
        "frozen_epochs": 0.25,
        "warmup_epochs": 0.5,
        "lr": 60.0,
    },
    "IBOT": {
        "backbone": "vit_tiny_patch16_224",
        "backbone_args": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
        "dim": 64,
        "hidden": 48,
        "prototypes": 40,
        "local_crops": 3,
        "frozen_epochs": 0.25,
        "teacher_temperature": 0.05,
        "teacher_temperature_epochs": 2,
        "teacher_momentum": 0.9,
        "warmup_epochs": 0.5,
        "lr": 0.03,
    },
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small only wait for a second thread, long when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def plan() -> Plan:
    return PLAN


@pytest.fixture(scope="session")
def small() -> dict[str, dict[str, Any]]:
    """Constructor arguments by class name."""
    return SMALL


@pytest.fixture(scope="session")
def run() -> ModuleType:
    """rank_of_a_run.py as a module."""
    spec = importlib.util.spec_from_file_location("rank_of_a_run", Path(__file__).parent / "rank_of_a_run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
