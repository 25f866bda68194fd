"""The tree of a finished run is that of its images: every later look at them gives the same leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from hirl import HierarchicalKMeans, Hierarchy, Run, pretrain
from hirl.data import Shapes
from hirl.explore.embed import embed
from hirl.methods import SimSiam
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.representations import load_trained
from hirl.train.epoch_trees import EpochTrees

OPTIONS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "accelerator": "cpu", "devices": 1, "knn_every": 0}


def simsiam() -> SimSiam:
    return SimSiam(backbone="resnet10t", backbone_args={"channels": [8, 8, 16, 16]}, dim=16, predictor_hidden=8)


def collapse_in(
    monkeypatch: pytest.MonkeyPatch, epochs: tuple[int, ...], change: Callable[[Tensor], Tensor] = torch.ones_like
) -> None:
    """Change z⁰, by default to one point, when the trees of these epochs are built, from 0; the final tree is 3."""
    build, embed_all = EpochTrees.build, EpochTrees._embed_all
    built: list[int] = []

    def numbered(self: EpochTrees, epoch: int, *features: Any) -> None:
        built.append(epoch)
        build(self, epoch, *features)

    def one_point(self: EpochTrees) -> tuple[Tensor, Tensor]:
        index, z0 = embed_all(self)
        return index, change(z0) if built[-1] in epochs else z0

    monkeypatch.setattr(EpochTrees, "build", numbered)
    monkeypatch.setattr(EpochTrees, "_embed_all", one_point)


@pytest.fixture(scope="module")
def shapes() -> Shapes:
    return Shapes(images=100, size=16, cache=False)


@pytest.mark.parametrize("spherical", [True, False])
@pytest.mark.parametrize("features", ["bank", "pass"])
def test_every_image_has_the_leaf_of_its_clean_z0(
    features: Any, spherical: bool, shapes: Shapes, tmp_path: Path
) -> None:
    builder = HierarchicalKMeans(spherical=spherical)
    hierarchy = Hierarchy(levels=(12, 4), start_epoch=1, features=features, builder=builder)
    run = pretrain(shapes, simsiam(), hierarchy, out=tmp_path / "run", **OPTIONS)
    arrays = embed(run, shapes, device="cpu", quiet=True)
    tree = run.tree
    assert torch.equal(tree.leaves, tree.assign(torch.from_numpy(arrays["z0"])))
    assert np.array_equal(arrays["path"], tree.image_paths.numpy())
    kept = load_trained(run).tree
    assert kept is not None
    assert torch.equal(kept.leaves, tree.leaves)
    assert all(torch.equal(*pair) for pair in zip(kept.prototypes, tree.prototypes, strict=True))
    assert load_checkpoint(run.checkpoint_file)["finished"]
    compared = [line for line in run.metrics() if "bank_agreement" in line]
    assert len(compared) == (2 if features == "bank" else 0)  # of epochs 2 and 3
    for line in compared:
        assert 0 <= line["bank_agreement"] <= line["bank_agreement_coarsest"] <= 1


def test_the_agreement_is_that_of_the_bank_with_clean_images(
    shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bank that holds the clean features themselves, all leaves agree."""

    monkeypatch.setattr(EpochTrees, "_features", lambda self, *_: self._embed_all())
    run = pretrain(shapes, simsiam(), Hierarchy(levels=(12, 4), start_epoch=1), out=tmp_path / "run", **OPTIONS)
    assert [line["bank_agreement"] for line in run.metrics() if "bank_agreement" in line] == [1, 1]


def test_a_collapsed_encoder_keeps_the_prototypes_of_the_last_epoch(
    shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that trained to the end is not lost because its images can no longer be clustered."""
    collapse_in(monkeypatch, epochs=(3,))
    with pytest.warns(UserWarning, match="the finished run keeps the prototypes of the last tree: .* too few"):
        run = pretrain(shapes, simsiam(), Hierarchy(levels=(12, 4), start_epoch=1), out=tmp_path / "run", **OPTIONS)
    assert run.finished
    assert len(run.tree.leaves.unique()) == 1


def test_an_image_without_a_direction_is_left_out_of_the_final_tree(
    shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree cannot be built anew, but the run ends: all other images get the leaf that `tree.assign` finds."""
    collapse_in(monkeypatch, (3,), lambda z0: z0.index_fill(0, torch.tensor([7]), 0.0))
    with pytest.warns(UserWarning, match="the finished run keeps the prototypes of the last tree: row 7 .* length 0"):
        run = pretrain(shapes, simsiam(), Hierarchy(levels=(12, 4), start_epoch=1), out=tmp_path / "run", **OPTIONS)
    assert run.finished
    z0 = torch.from_numpy(embed(run, shapes, device="cpu", quiet=True)["z0"])
    expected = run.tree.assign(z0).index_fill(0, torch.tensor([7]), -1)
    assert torch.equal(run.tree.leaves, expected)


@pytest.mark.parametrize("collapsed", [(2,), (1, 2, 3)])
def test_a_run_goes_on_with_the_last_tree_or_without_one(
    collapsed: tuple[int, ...], shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """z⁰ is one point in the epochs `collapsed`, 3 being the final tree: training goes on, with a warning for each."""
    collapse_in(monkeypatch, collapsed)
    hierarchy = Hierarchy(levels=(12, 4), start_epoch=1, features="pass")
    with pytest.warns(UserWarning, match="too few") as warned:
        run = pretrain(shapes, simsiam(), hierarchy, out=tmp_path / "run", **OPTIONS)
    kept = "keeps the prototypes of the last tree" if collapsed == (2,) else "has no tree"
    found = [str(warning.message) for warning in warned if "too few" in str(warning.message)]
    assert [text.partition(": ")[0] for text in found] == [
        f"{'the finished run' if epoch == 3 else f'epoch {epoch + 1}'} {kept}" for epoch in collapsed
    ]
    assert run.finished
    assert run.encoder_file.is_file()
    assert run.tree_file.is_file() == (collapsed == (2,))


@pytest.mark.parametrize("size", [16, 140])  # in memory, and read as files
@pytest.mark.parametrize("features", ["bank", "pass"])
def test_unreadable_images_are_in_no_tree_and_get_no_features(features: Any, size: int, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number:02d}.png")
    bad = [7, 8, 39]
    for number in bad:
        (photos / f"{number:02d}.png").write_bytes(b"broken")
    hierarchy = Hierarchy(levels=(6, 2), start_epoch=1, features=features)
    options = OPTIONS | {"image_size": 16, "workers": 0}
    run = pretrain(str(photos), simsiam(), hierarchy, out=tmp_path / "run", **options)
    tree = Run(run.folder).tree
    assert (tree.leaves == -1).nonzero().flatten().tolist() == bad
    assert tree.count == int(tree.sizes(1).sum()) == 37
    state = load_checkpoint(run.checkpoint_file)
    if features == "bank":
        assert (state["bank"]["step_of"] == -1).nonzero().flatten().tolist() == bad
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match="could not be read"):
            arrays = embed(run, device="cpu", workers=0, quiet=True)
        assert np.flatnonzero(~arrays["readable"]).tolist() == bad
        for name in ("features", "z0", "z1", "z2"):
            assert np.isnan(arrays[name]).all(1).nonzero()[0].tolist() == bad
            assert np.isfinite(arrays[name][arrays["readable"]]).all()
        assert np.array_equal(arrays["path"], tree.image_paths.numpy())
        assert (arrays["path"][bad] == -1).all()
