"""Collapse is told of in words with the remedy, by figures alone and in real runs of all methods; health is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import PrototypeTree, methods
from hirl.methods import simsiam
from hirl.train import health as watch
from hirl.train.pretrain import pretrain

RESNET = {"backbone": "resnet10t", "backbone_args": {"channels": [8, 8, 16, 16]}, "dim": 16}
VIT = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_args": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2},
    "dim": 16,
    "hidden": 32,
}
HEAD = {"hidden": 32, "prototypes": 64, "local_crops": 0, "warmup_epochs": 1}
METHODS: dict[str, dict[str, Any]] = {
    "MoCoV2": {**RESNET, "queue_length": 64, "bn_splits": 1, "temperature": 0.05, "lr": 0.3},
    "SimSiam": {**RESNET, "predictor_hidden": 8},
    "SwAV": {**RESNET, **HEAD, "lr": 30.0, "frozen_epochs": 0.5},
    "MoCoV3": {**VIT, "warmup_epochs": 1, "lr": 0.01},
    "DINO": {**VIT, **HEAD},
    "IBOT": {**VIT, **HEAD},
}
EVEN = {"student_temperature": 1.0, "teacher_temperature": 1.0, "teacher_temperature_start": 1.0}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def warnings_of(name: str, folder: Path, **changes: Any) -> str:
    """What a run of a few epochs on pictures of four colours each warned of."""
    colours = np.random.default_rng(0).integers(0, 256, (64, 2, 2, 3), dtype=np.uint8)
    method = getattr(methods, name)(**(METHODS[name] | changes))
    options: dict[str, Any] = {"epochs": 5, "batch_size": 16, "accelerator": "cpu", "devices": 1}
    run = pretrain(colours.repeat(8, axis=1).repeat(8, axis=2), method, None, out=folder / "run", **options)
    return "\n".join(line for line in run.log_file.read_text().splitlines() if "warning" in line)


@pytest.mark.parametrize("name", METHODS)
def test_a_healthy_run_warns_of_nothing(name: str, tmp_path: Path) -> None:
    assert warnings_of(name, tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "changes", "loss", "remedy"),
    [
        ("MoCoV2", {"temperature": 5.0}, "ln 65", "use fewer outputs"),
        ("SwAV", {"temperature": 0.8, "epsilon": 0.8}, "ln 64", "an epsilon well below the temperature"),
        ("DINO", EVEN, "ln 64", "frozen_epochs"),
        ("IBOT", EVEN, "ln 64", "frozen_epochs"),  # its loss is twice that, with the patches'
    ],
)
def test_a_loss_that_stays_even_is_told_with_the_methods_remedy(
    name: str, changes: dict[str, Any], loss: str, remedy: str, tmp_path: Path
) -> None:
    warnings = warnings_of(name, tmp_path, **changes)
    assert f"which is {loss}: every image looks the same" in warnings
    assert remedy in warnings


def with_gradient(predictions: list[Tensor], outputs: list[Tensor]) -> Tensor:
    """SimSiam's loss without what keeps it from collapse."""
    return -(
        F.cosine_similarity(predictions[0], outputs[1], dim=1).mean()
        + F.cosine_similarity(predictions[1], outputs[0], dim=1).mean()
    )


def test_simsiam_without_its_stop_gradient_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simsiam, "prediction_loss", with_gradient)
    assert "the representations lie nearly on a line" in warnings_of("SimSiam", tmp_path, lr=5.0)


@pytest.mark.parametrize(("name", "changes"), [("SimSiam", {}), ("MoCoV3", {}), ("SwAV", {"head_batch_norm": True})])
def test_an_encoder_that_gives_one_vector_is_told_of(
    name: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch norm blows up what rounding leaves of it, so that it is another vector in every batch."""
    kind = getattr(methods, name)
    build = kind.build

    def blind(self: methods.Method, plan: Any) -> None:
        build(self, plan)
        for twin in self.encoder_copies:
            twin.register_forward_hook(lambda _, __, features: features * 0 + 1)

    monkeypatch.setattr(kind, "build", blind)
    assert "the representations have nearly collapsed" in warnings_of(name, tmp_path, **changes)


# By figures


def test_representations(generator: torch.Generator) -> None:
    spread = torch.randn(500, 32, generator=generator)
    health = watch.representations([spread[:200], spread[200:]])
    assert health.figures["feature_std"] == pytest.approx(1, abs=0.03)
    assert health.figures["effective_rank"] > 25
    assert health.warnings == []
    centre = 20 * torch.randn(32, generator=generator)
    assert "nearly collapsed" in watch.representations([spread + centre]).warnings[0]
    moved = [torch.randn(32, generator=generator).expand(100, 32) for _ in range(5)]
    assert "nearly collapsed" in watch.representations(moved).warnings[0]
    assert watch.representations(list(spread.split(1))).warnings == []
    on_a_line = torch.randn(500, 1, generator=generator).sign() * centre + spread / 10
    (warning,) = watch.representations([on_a_line]).warnings
    assert "nearly on a line" in warning


@pytest.mark.parametrize(("loss", "stuck"), [(1, True), (1.005, True), (0.995, True), (1.02, False), (0.98, False)])
def test_a_loss_at_ln_k(loss: float, stuck: bool) -> None:
    assert bool(watch.stuck_at(loss * math.log(300), 300, "pray").warnings) is stuck
    assert not watch.stuck_at(loss * math.log(300), None, "pray").warnings


def test_tree_shape(random_tree: Callable[..., PrototypeTree]) -> None:
    drawn = random_tree((10, 3), 8)
    tree = PrototypeTree(drawn.prototypes, (torch.arange(10) % 3,), torch.arange(200) % 10)
    assert watch.tree_shape(tree).warnings == []

    def with_leaves(leaves: Tensor) -> str:
        return "\n".join(watch.tree_shape(PrototypeTree(tree.prototypes, tree.parents, leaves)).warnings)

    giant = with_leaves(torch.where(torch.arange(200) < 190, 0, torch.arange(200) % 10))
    assert "few leaves hold nearly all images" in giant
    assert "a node of level 0 holds 9" in giant
    assert "100% of the leaves hold a single image; ask for fewer leaves than 10 for 10 images" in with_leaves(
        torch.arange(10)
    )
