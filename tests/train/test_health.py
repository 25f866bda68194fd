"""A collapsing run warns and names the remedy, a healthy one does not: on figures, and in runs of all methods."""

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

from hirl import PrototypeTree
from hirl.methods import Method, simsiam
from hirl.train.health import check_loss, check_representations, check_tree
from hirl.train.pretrain import pretrain

from ..small_methods import METHODS, NAMES, small_arguments

EVEN = {"student_temperature": 1.0, "teacher_temperature": 1.0, "teacher_temperature_start": 1.0}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small are slower with a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def warnings_of(name: str, folder: Path, **changes: Any) -> str:
    """Return the warnings of a run of a few epochs on images of four colours each."""
    colours = np.random.default_rng(0).integers(0, 256, (64, 2, 2, 3), dtype=np.uint8)
    quick = {"momentum": 0.9, "teacher_momentum": 0.9, "temperature": 0.1}
    method = METHODS[name](**small_arguments(name, size=16, **quick | changes))
    options: dict[str, Any] = {"epochs": 5, "batch_size": 16, "accelerator": "cpu", "devices": 1}
    run = pretrain(colours.repeat(8, axis=1).repeat(8, axis=2), method, None, out=folder / "run", **options)
    return "\n".join(line for line in run.log_file.read_text().splitlines() if "warning" in line)


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_run_does_not_warn(name: str, tmp_path: Path) -> None:
    assert warnings_of(name, tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "changes", "loss", "remedy"),
    [
        ("MoCoV2", {"temperature": 5.0}, "ln 33", "use fewer outputs"),
        ("SwAV", {"temperature": 0.8, "epsilon": 0.8}, "ln 32", "an epsilon well below the temperature"),
        ("DINO", EVEN, "ln 32", "frozen_epochs"),
        ("IBOT", EVEN, "ln 32", "frozen_epochs"),  # its loss is twice that, with the patches'
    ],
)
def test_a_loss_stuck_at_ln_k_warns_with_the_remedy_of_the_method(
    name: str, changes: dict[str, Any], loss: str, remedy: str, tmp_path: Path
) -> None:
    warnings = warnings_of(name, tmp_path, **changes)
    assert f"which is {loss}: the method gives all images the same output" in warnings
    assert remedy in warnings


def with_gradient(predictions: list[Tensor], outputs: list[Tensor]) -> Tensor:
    """Compute SimSiam's loss without the stop-gradient that keeps it from collapse."""
    return -(
        F.cosine_similarity(predictions[0], outputs[1], dim=1).mean()
        + F.cosine_similarity(predictions[1], outputs[0], dim=1).mean()
    )


def test_simsiam_without_its_stop_gradient_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simsiam, "prediction_loss", with_gradient)
    assert "the representations lie nearly on a line" in warnings_of("SimSiam", tmp_path, lr=5.0)


@pytest.mark.parametrize(("name", "changes"), [("SimSiam", {}), ("MoCoV3", {}), ("SwAV", {"head_batch_norm": True})])
def test_an_encoder_with_constant_output_warns(
    name: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch norm amplifies rounding errors, so the constant differs from batch to batch."""
    kind: Any = METHODS[name]
    build = kind.build

    def blind(self: Method, plan: Any) -> None:
        build(self, plan)
        for twin in self.encoder_copies:
            twin.register_forward_hook(lambda _, __, features: features * 0 + 1)

    monkeypatch.setattr(kind, "build", blind)
    assert "the representations have nearly collapsed" in warnings_of(name, tmp_path, **changes)


# On figures


def test_representations(generator: torch.Generator) -> None:
    spread = torch.randn(500, 32, generator=generator)
    health = check_representations([spread[:200], spread[200:]])
    assert health.figures["feature_std"] == pytest.approx(1, abs=0.03)
    assert health.figures["effective_rank"] > 25
    assert health.warnings == []
    centre = 20 * torch.randn(32, generator=generator)
    assert "nearly collapsed" in check_representations([spread + centre]).warnings[0]
    moved = [torch.randn(32, generator=generator).expand(100, 32) for _ in range(5)]
    assert "nearly collapsed" in check_representations(moved).warnings[0]
    assert check_representations(list(spread.split(1))).warnings == []
    on_a_line = torch.randn(500, 1, generator=generator).sign() * centre + spread / 10
    (warning,) = check_representations([on_a_line]).warnings
    assert "nearly on a line" in warning


@pytest.mark.parametrize(("loss", "stuck"), [(1, True), (1.005, True), (0.995, True), (1.02, False), (0.98, False)])
def test_a_loss_at_ln_k(loss: float, stuck: bool) -> None:
    assert bool(check_loss(loss * math.log(300), 300, "pray")) is stuck
    assert not check_loss(loss * math.log(300), None, "pray")


def test_tree_shape(random_tree: Callable[..., PrototypeTree]) -> None:
    drawn = random_tree((10, 3), 8)
    tree = PrototypeTree(drawn.prototypes, (torch.arange(10) % 3,), torch.arange(200) % 10)
    assert check_tree(tree).warnings == []

    def with_leaves(leaves: Tensor) -> str:
        return "\n".join(check_tree(PrototypeTree(tree.prototypes, tree.parents, leaves)).warnings)

    giant = with_leaves(torch.where(torch.arange(200) < 190, 0, torch.arange(200) % 10))
    assert "few leaves hold nearly all images" in giant
    assert "a node of level 0 holds 9" in giant
    assert "100% of the leaves hold a single image; use fewer leaves than 10 for 10 images" in with_leaves(
        torch.arange(10)
    )
    crowded = with_leaves(torch.cat((torch.arange(8), torch.arange(192) % 2 + 8)))
    assert "80% of the leaves hold a single image, and nearly all of the 200 images share the other 20%" in crowded
    assert "nearly the same representation" in crowded
    assert "fewer leaves than" not in crowded
    half_used = check_tree(PrototypeTree(tree.prototypes, tree.parents, torch.arange(200) % 5))
    assert (half_used.figures["one_image_leaves"], half_used.figures["empty_leaves"]) == (0, 0.5)
    assert half_used.warnings == []
    assert "30% of the leaves hold a single image and 60% hold none; use fewer leaves" in with_leaves(
        torch.tensor([0] * 5 + [1, 2, 3])
    )
    assert with_leaves(torch.arange(200) % 4).startswith(
        "60% of the leaves hold no image, and nearly all of the 200 images"
    )
