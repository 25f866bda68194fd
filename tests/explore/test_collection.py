"""Collections: leaves as `hirl embed` gives them, unreadable images left out, features from files."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hirl import Run
from hirl.cli.main import main
from hirl.explore.collection import Collection, open_collection
from hirl.explore.duplicates import find_duplicates
from hirl.explore.embed import embed


@pytest.fixture
def some(photos: Path, tmp_path: Path) -> Path:
    """Class folders with a damaged file in the middle of one."""
    for name in ("one", "two"):
        (tmp_path / "some" / name).mkdir(parents=True)
    sources = sorted(photos.glob("*/1*.png"))[:12]
    for number, source in enumerate(sources):
        shutil.copy(source, tmp_path / "some" / ("one", "two")[number % 2] / f"{number:02d}.png")
    (tmp_path / "some" / "one" / "05 damaged.png").write_bytes(b"no image")
    return tmp_path / "some"


def test_page_and_embed_agree_image_by_image(runs: dict[str, Run], some: Path) -> None:
    run = runs["hirl"]
    with pytest.warns(
        UserWarning, match=r"1 of the 13 images of .* cannot be read and are left out; the first: .*damaged"
    ):
        found = open_collection(run, some, device="cpu", quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = embed(run, some, device="cpu", quiet=True)
    rows = found.rows.tolist()
    assert len(rows) == 12
    assert not any(path.endswith("damaged.png") for path in found.paths)
    assert found.paths == arrays["image"][rows].tolist()
    assert np.array_equal(found.tree.path(found.tree.leaves).numpy(), arrays["path"][rows])
    assert found.tree.by_path
    assert torch.equal(found.tree.leaves, run.tree.assign(found.z[0]))
    assert np.array_equal(found.features.numpy(), arrays["features"][rows])
    assert len(found.z) == 3
    assert [bad.index for bad in found.unreadable] == sorted(set(range(13)) - set(rows))
    assert found.images.labels is not None
    assert np.array_equal(found.images.labels.numpy(), arrays["labels"][rows])


def test_images_that_come_right_are_taken_in(runs: dict[str, Run], some: Path) -> None:
    Image.new("RGB", (50, 30)).save(some / "two" / "wide.png")  # images of several sizes are not kept in memory

    def count() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return len(open_collection(runs["hirl"], some, device="cpu", quiet=True))

    assert count() == 13
    assert count() == 13  # features from the cache
    shutil.copy(some / "two" / "01.png", some / "one" / "05 damaged.png")
    assert count() == 14


def test_typicality_is_the_cosine_to_each_prototype_of_the_path(collection: Collection) -> None:
    typical = collection.typicality()
    for index in (0, 17, 59):
        for level, node in enumerate(collection.tree.paths[collection.tree.leaves[index]].tolist()):
            expected = torch.cosine_similarity(collection.z[0][index], collection.tree.prototypes[level][node], dim=0)
            assert float(typical[index, level]) == pytest.approx(float(expected), abs=1e-5)


def test_a_baseline_gets_a_tree_of_its_own(runs: dict[str, Run]) -> None:
    found = open_collection(runs["base"], device="cpu", quiet=True)
    assert "has no tree: this one" in found.tree_note
    assert torch.equal(found.tree.leaves, found.tree.assign(found.z[0]))


@pytest.mark.parametrize("file", ["z.npz", "z.parquet"])
def test_what_embed_writes_is_read_again(file: str, runs: dict[str, Run], some: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        embed(runs["hirl"], some, out=tmp_path / file, device="cpu", quiet=True)
        direct = open_collection(runs["hirl"], some, device="cpu", quiet=True)
        found = open_collection(tmp_path / file, quiet=True)
    assert found.paths == direct.paths
    assert torch.equal(found.z[2], direct.z[2])
    assert torch.equal(found.tree.path(found.tree.leaves), direct.tree.path(direct.tree.leaves))
    assert found.tree.levels == direct.tree.levels
    assert torch.equal(found.tree.parents[0], direct.tree.parents[0])
    assert found.images.label_names == direct.images.label_names
    assert torch.equal(torch.as_tensor(found.images.labels), torch.as_tensor(direct.images.labels))


def test_the_tree_of_a_few_images_has_all_its_nodes(runs: dict[str, Run], some: Path, tmp_path: Path) -> None:
    arrays = embed(runs["hirl"], some / "two", out=tmp_path / "z.npz", device="cpu", quiet=True)
    own = runs["hirl"].tree
    found = open_collection(tmp_path / "z.npz", quiet=True)
    assert arrays["path"].max() + 1 < own.levels[0]
    assert found.tree.levels == own.levels
    assert torch.equal(found.tree.parents[0], own.parents[0])
    assert torch.equal(found.tree.path(found.tree.leaves), torch.from_numpy(arrays["path"]))
    for name, wrong, sentence in (
        ("tree_levels", np.array([2, 1]), "must be the nodes per level"),
        ("tree_levels", np.array([24.0, 6.0]), "must be the nodes per level"),
        ("tree_parents_0", np.zeros(3, dtype=np.int64), "must be the parent of each of the 24 nodes of level 0"),
        ("tree_parents_0", (arrays["tree_parents_0"] + 1) % 6, "does not agree with path"),
    ):
        np.savez(tmp_path / "wrong.npz", allow_pickle=False, **(arrays | {name: wrong}))
        assert sentence in mistake(tmp_path / "wrong.npz")
    paths_alone = {name: array for name, array in arrays.items() if not name.startswith("tree_")}
    np.savez(tmp_path / "paths.npz", allow_pickle=False, **paths_alone)
    found = open_collection(tmp_path / "paths.npz", quiet=True)
    assert torch.equal(found.tree.path(found.tree.leaves), torch.from_numpy(arrays["path"]))


@pytest.mark.parametrize(
    ("which", "levels"),
    [([0], (1,)), ([0, 0], (1,)), ([0, 1, 2], (1,)), ([0, 1, 2] * 15, (1,)), ([*range(6)] * 7, (2,))],
)
def test_few_images_and_many_copies_have_a_tree(which: list[int], levels: tuple[int, ...], tmp_path: Path) -> None:
    """Of as many leaves as suit the images that differ; who looks for copies may have nothing else."""
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(which):
        Image.new("RGB", (16, 16), (30 * image, 0, 0)).save(tmp_path / "photos" / f"{number:02d}.png")
    rows = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    np.save(tmp_path / "features.npy", rows[which])
    collection = open_collection(tmp_path / "features.npy", tmp_path / "photos", quiet=True)
    assert collection.tree.levels == levels
    assert collection.tree.count == len(which)
    groups = find_duplicates(collection, 0.99).groups
    assert sum(len(group.copies) for group in groups) == len(which) - len(set(which))


def test_rows_without_features_are_left_out(photos: Path, features: Path, tmp_path: Path) -> None:
    """As of images that could not be read when they were embedded, but can be now."""
    rows = np.load(features)
    rows[3] = np.nan
    path = np.stack([np.arange(len(rows)) % 6, np.arange(len(rows)) % 2], axis=1)
    path[5] = -1
    np.savez(tmp_path / "z.npz", features=rows, path=path)
    with pytest.warns(UserWarning, match=r"3 of the 61 images of .* cannot be read and are left out"):
        found = open_collection(tmp_path / "z.npz", photos, quiet=True)
    assert sorted(set(range(61)) - set(found.rows.tolist())) == [3, 5, 17]
    assert torch.equal(found.tree.path(found.tree.leaves), torch.from_numpy(path)[found.rows])


def test_a_tree_may_come_from_a_file(collection: Collection, features: Path, photos: Path, tmp_path: Path) -> None:
    collection.tree.save(tmp_path / "tree.safetensors")
    with pytest.warns(UserWarning, match="left out"):
        found = open_collection(features, photos, tree=tmp_path / "tree.safetensors", quiet=True)
    assert torch.equal(found.tree.leaves, collection.tree.leaves)
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ValueError, match=r"levels is \(5,\), but must not be given here"),
    ):
        open_collection(features, photos, tree=tmp_path / "tree.safetensors", levels=(5,), quiet=True)


def test_the_leaves_of_a_tree_over_these_rows_are_kept(
    collection: Collection, features: Path, photos: Path, tmp_path: Path
) -> None:
    """As stored, wherever another leaf is nearer; a tree over other rows assigns these, and the note says so."""
    stored = torch.arange(61) * 5 % 12
    stored[8] = -1  # an image that could not be read when the tree was built
    file = tmp_path / "tree.safetensors"
    replace(collection.tree, leaves=stored).save(file)
    assigned = collection.tree.assign(collection.z[0])
    with pytest.warns(UserWarning, match="left out"):
        found = open_collection(features, photos, tree=file, quiet=True)
    expected = torch.where(stored[found.rows] == -1, assigned, stored[found.rows])
    assert not torch.equal(expected, assigned)
    assert torch.equal(found.tree.leaves, expected)
    assert found.tree_note == (f"the tree is that of {file}; images that are not in it (1) are assigned to its leaves")
    replace(collection.tree, leaves=stored[:50]).save(file)
    with pytest.warns(UserWarning, match="left out"):
        found = open_collection(features, photos, tree=file, quiet=True)
    assert torch.equal(found.tree.leaves, assigned)
    assert found.tree_note == (
        f"the tree is that of {file}, built over 50 images; the 60 images here are assigned to its leaves"
    )


def mistake(path: Path, data: Path | None = None) -> str:
    with pytest.raises(ValueError, match=r".") as raised:
        open_collection(path, data, quiet=True)
    return str(raised.value)


def test_mistakes(tmp_path: Path, some: Path) -> None:
    random = np.random.default_rng(0)
    np.save(tmp_path / "few.npy", random.standard_normal((5, 4)).astype(np.float32))
    np.save(tmp_path / "ints.npy", np.ones((13, 4), dtype=np.int64))
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    np.savez(tmp_path / "arrays.npz", features=np.ones((2, 3), np.float32), image=np.array(["shapes[0]", "shapes[1]"]))
    (tmp_path / "text.npz").write_text("no archive")
    assert "there is no file" in mistake(tmp_path / "none.npy", some)
    assert "does not name its images" in mistake(tmp_path / "few.npy")
    assert "has 5 rows, but" in mistake(tmp_path / "few.npy", some)
    assert "is of type int64, but must be of a float type" in mistake(tmp_path / "ints.npy", some)
    assert "neither features nor z0" in mistake(tmp_path / "other.npz", some)
    assert "which are not files" in mistake(tmp_path / "arrays.npz")
    assert "is not a .npz file of numbers" in mistake(tmp_path / "text.npz", some)
    for file in some.rglob("*.png"):
        file.write_bytes(b"")
    np.save(tmp_path / "all.npy", random.standard_normal((13, 4)).astype(np.float32))
    assert "none of the 13 images" in mistake(tmp_path / "all.npy", some)


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_finished_run_without_its_checkpoint_is_still_shown(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its leaves are those of its tree; pooled features are searched and sampled in place of z⁰."""
    run = runs["hirl"]
    content = bytearray(run.checkpoint_file.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (content, content[:-100]):
        run.checkpoint_file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"last\.ckpt', which holds the heads, is damaged: .* pooled features"):
            assert len(open_collection(run, device="cpu", quiet=True)) == run.tree.count
    run.checkpoint_file.unlink()
    with pytest.warns(UserWarning, match=r"last\.ckpt', which holds the heads, is missing: .* pooled features"):
        collection = open_collection(run, device="cpu", quiet=True)
    assert torch.equal(collection.tree.leaves, run.tree.leaves)
    assert collection.tree.levels == run.tree.levels
    assert torch.equal(collection.z[0], collection.features)
    file = tmp_path / "query.png"
    Image.fromarray(collection.images.read(3).permute(1, 2, 0).numpy()).save(file)
    folder = str(run.folder)
    for line in (["tree", folder], ["search", folder, str(file)], ["sample", folder, "--size", "10"]):
        assert main([*line, "--device", "cpu"]) == 0, capsys.readouterr().err
    shutil.rmtree(run.folder / "features")
    assert main(["tree", folder, "--device", "cpu"]) == 0
