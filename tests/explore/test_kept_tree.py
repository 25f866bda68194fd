"""A tree that is kept: the same for the same images, updated when images come and go, with numbers that stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.explore.kept_tree import KeptTree, keep_tree
from hirl.hierarchy.builder import POOLED_FEATURES
from hirl.hierarchy.path_steps import update_tree
from hirl.hierarchy.tree import PrototypeTree

LEVELS = (24, 6)


def rows(count: int, *, seed: int = 0, centres: int = 24) -> Tensor:
    middle = F.normalize(torch.randn(centres, 16, generator=torch.Generator().manual_seed(9)), dim=1)
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(centres, (count,), generator=generator)
    return middle[which] + 0.2 * torch.randn(count, 16, generator=generator)


def files(*numbers: int) -> list[str]:
    return [f"photos/{number:04d}.jpg" for number in range(*numbers)]


def build(features: Tensor) -> PrototypeTree:
    return replace(POOLED_FEATURES, components=8)(features, LEVELS)


def kept_in(folder: Path, names: list[str], features: Tensor, *, anew: bool = False) -> tuple[KeptTree, str]:
    return keep_tree(folder, "abc", names, features, lambda: build(features), anew=anew)


def test_the_same_images_have_the_same_tree_and_new_ones_join_it(tmp_path: Path) -> None:
    old, new = rows(400), rows(40, seed=1)
    first, changes = kept_in(tmp_path, files(400), old)
    assert changes == ""
    again, changes = kept_in(tmp_path, files(400), old)
    assert (again.identity, changes) == (first.identity, "")
    assert torch.equal(again.tree.leaves, first.tree.leaves)
    later, changes = kept_in(tmp_path, files(10, 440), torch.cat((old[10:], new)))
    assert later.identity == first.identity
    assert later.tree.levels == LEVELS
    assert torch.equal(later.tree.parents[0], first.tree.parents[0])
    moved = (later.tree.image_paths[:390] != first.tree.image_paths[10:]).float().mean(0)
    assert float(moved.max()) < 0.05
    assert changes.startswith(
        ". It was updated: 40 images added, 10 removed; nodes keep their numbers and names. Of the 390 other images, "
    )
    shares = f"{100 * float(moved[0]):.1f} % at level 0, {100 * float(moved[1]):.1f} % at level 1"
    assert changes.endswith(f"these shares moved to another node: {shares}")
    assert "--anew" not in changes
    stored = KeptTree.load(tmp_path, "abc")
    assert stored is not None
    assert torch.equal(stored.tree.leaves, later.tree.leaves)


def test_files_that_change_under_their_names_update_the_tree(tmp_path: Path) -> None:
    old = rows(400)
    first, _ = kept_in(tmp_path, files(400), old)
    edited = old.clone()
    edited[:20] = rows(20, seed=5)
    later, changes = kept_in(tmp_path, files(400), edited)
    assert later.identity == first.identity
    assert torch.equal(later.tree.leaves, update_tree(first.tree, edited).leaves)
    assert not torch.equal(later.tree.leaves[:20], first.tree.leaves[:20])
    assert (
        "the features of the same files have changed; nodes keep their numbers and names. Of the 400 images, "
        in changes
    )
    assert kept_in(tmp_path, files(400), edited)[1] == ""


def test_an_interrupted_save_loses_no_tree_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = kept_in(tmp_path, files(300), rows(300))
    with monkeypatch.context() as patch:
        patch.setattr(PrototypeTree, "save", full := Mock(side_effect=OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            kept_in(tmp_path, files(299), rows(300)[:299])
    assert full.called
    again, changes = kept_in(tmp_path, files(300), rows(300))
    assert (again.identity, changes) == (first.identity, "")
    with monkeypatch.context() as patch:
        patch.setattr("hirl.explore.kept_tree.write_json", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            kept_in(tmp_path, files(299), rows(300)[:299])
    with pytest.warns(
        UserWarning, match="is not the one that its list of images belongs to; a new tree is built, with"
    ):
        kept_in(tmp_path, files(300), rows(300))


def test_a_node_whose_images_are_gone_stays_empty(tmp_path: Path) -> None:
    old = rows(400)
    first, _ = kept_in(tmp_path, files(400), old)
    node = int(first.tree.sizes(1).argmin())
    left = (first.tree.image_paths[:, 1] != node).nonzero().flatten()
    tree = update_tree(first.tree, old[left])
    assert int(tree.sizes(1)[node]) == 0
    assert torch.equal(tree.prototypes[1][node], first.tree.prototypes[1][node])
    _, changes = kept_in(tmp_path, [files(400)[index] for index in left.tolist()], old[left])
    assert "Without images now: " in changes
    assert f"1-{node}" in changes


@pytest.mark.parametrize("damage", ["{", "one digit"])
def test_a_damaged_list_is_named(tmp_path: Path, damage: str) -> None:
    first, _ = kept_in(tmp_path, files(300), rows(300))
    listed = tmp_path / "tree_images.json"
    listed.write_text(listed.read_text().replace("0017.jpg", "9017.jpg") if damage == "one digit" else damage)
    with pytest.warns(UserWarning, match="damaged.*; a new tree is built, without the names given to nodes"):
        other, changes = kept_in(tmp_path, files(300), rows(300, seed=4))
    assert changes == ""
    assert other.identity != first.identity


@pytest.mark.parametrize("change", ["anew", "other images", "other encoder"])
def test_a_new_tree_is_built_when_the_old_one_does_not_fit(tmp_path: Path, change: str) -> None:
    first, _ = kept_in(tmp_path, files(300), rows(300))
    if change == "other encoder":
        assert KeptTree.load(tmp_path, "another") is None
        return
    names = files(1000, 1300) if change == "other images" else files(300)
    other, changes = kept_in(tmp_path, names, rows(300, seed=4), anew=change == "anew")
    assert changes == ""
    assert other.identity != first.identity
