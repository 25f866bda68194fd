"""Cached features of a frozen network's views: damage is noticed, and images of unknown content share nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hirl.data import Shapes
from hirl.data.sources.image_set import ImageSet
from hirl.data.views import View
from hirl.features import view_cache
from hirl.features.view_cache import compute_or_load_views
from hirl.files import verify
from hirl.terminal.progress import Progress, no_progress


class Killed(Exception):  # noqa: N818
    """Nothing after it is written."""


class Doubled(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return 2 * rows


class Unknown(ImageSet):
    """A data set of one's own, which does not say what distinguishes it."""

    def __init__(self, shade: int) -> None:
        super().__init__(name="mine")
        self.shade = shade

    def __len__(self) -> int:
        return 4

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:  # noqa: ARG002
        return torch.full((3, 20, 20), self.shade + index, dtype=torch.uint8)


@pytest.fixture(scope="module")
def images() -> Shapes:
    return Shapes(images=96, size=16, cache=False)


def features(
    images: ImageSet, folder: Path, progress: Progress = no_progress, network: nn.Module | None = None
) -> Tensor:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()) if network is None else network
    given: dict[str, Any] = {"size": 16, "mean": (0.5,) * 3, "std": (0.5,) * 3, "device": torch.device("cpu")}
    view = View(size=16, scale=(0.2, 1.0))
    found = compute_or_load_views(network, "a", images, view, 2, folder=folder, workers=0, progress=progress, **given)
    return found.rows.clone()


def test_only_random_views_pass_in_bfloat16(images: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = {}
    for fast in (False, True):
        monkeypatch.setattr(view_cache, "has_bfloat16", lambda _, fast=fast: fast)
        found[fast] = features(images, tmp_path, network=network)
    assert len(list(tmp_path.glob("*.npy"))) == 2  # one is not taken for the other
    assert torch.equal(found[True][:, 0], found[False][:, 0])
    views = {fast: rows[:, 1:].float() for fast, rows in found.items()}
    assert not torch.equal(views[True], views[False])
    torch.testing.assert_close(views[True], views[False], atol=0.01, rtol=0.02)


def test_views_pass_through_folded_batch_norms(images: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[nn.Module] = []

    def noted(network: nn.Module) -> nn.Module:
        folded.append(network)
        return nn.Sequential(network, Doubled())

    monkeypatch.setattr(view_cache, "fold_batch_norms", noted)
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
    found = features(images, tmp_path / "folded", network=network)
    monkeypatch.undo()
    assert folded == [network]
    assert torch.equal(found, 2 * features(images, tmp_path / "plain", network=network))


@pytest.mark.parametrize("lost", [False, True])
def test_damaged_features_are_computed_again(lost: bool, images: Shapes, tmp_path: Path) -> None:
    """A flipped bit; and noise at the end, which takes the checksum along."""
    expected = features(images, tmp_path)
    (file,) = tmp_path.glob("*.npy")
    content = bytearray(file.read_bytes())
    if lost:
        content[-2000:] = np.random.default_rng(0).bytes(2000)
    else:
        content[3000] ^= 8
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=r"\.npy' is damaged: .*; the features are computed again"):
        assert torch.equal(features(images, tmp_path), expected)
    assert torch.equal(features(images, tmp_path), expected)


def test_damaged_rows_of_a_killed_pass_are_computed_again(
    images: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_cache, "SAVED_EVERY", 1)

    def killing(_task: str, done: int, _total: int) -> None:
        if done == 64:
            raise Killed

    expected = features(images, tmp_path / "undisturbed")
    with pytest.raises(Killed):
        features(images, tmp_path / "killed", killing)
    (part,) = (tmp_path / "killed").glob("*.part")
    content = bytearray(part.read_bytes())
    content[1000] ^= 8
    part.write_bytes(content)
    assert torch.equal(features(images, tmp_path / "killed"), expected)


def test_a_file_may_be_deleted_while_it_is_verified(
    images: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes room for its own."""
    expected = features(images, tmp_path)

    def deleting(file: Path, *, required: bool) -> None:
        verify(file, required=required)
        file.unlink()

    monkeypatch.setattr(view_cache, "verify", deleting)
    assert torch.equal(features(images, tmp_path), expected)


def test_features_that_cannot_be_kept_are_computed(
    images: Shapes, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    expected = features(images, tmp_path / "kept")
    read_only(tmp_path / "not kept")
    with pytest.warns(UserWarning, match="nothing is kept for the next time"):
        assert torch.equal(features(images, tmp_path / "not kept"), expected)
    assert not any((tmp_path / "not kept").iterdir())


def test_images_of_unknown_content_do_not_share_features(tmp_path: Path) -> None:
    dark, light = (features(Unknown(shade), tmp_path) for shade in (0, 200))
    assert not torch.equal(dark, light)
    assert torch.equal(features(Unknown(0), tmp_path), dark)
    assert len(list(tmp_path.glob("*.npy"))) == 2
