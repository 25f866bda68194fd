"""hirl tree, tsne, search, duplicates and sample through the command line."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hirl import PrototypeTree, Run
from hirl.cli.main import main
from hirl.explore.collection import Collection
from hirl.explore.kept_tree import tree_id
from hirl.explore.search import different_levels

pytestmark = pytest.mark.filterwarnings("default:.*left out:UserWarning")  # of the damaged image


def run_line(*line: str | Path) -> int:
    return main([str(word) for word in line])


def page_data(folder: Path) -> dict[str, Any]:
    """The data inside a page."""
    text = (folder / "index.html").read_text()
    data: dict[str, Any] = json.loads(text.split('id="data">')[1].split("</script>")[0])
    return data


@pytest.fixture
def files(features: Path, tmp_path: Path) -> Path:
    """The file of features in a folder of its own, for pages are written beside it."""
    shutil.copy(features, tmp_path / "features.npy")
    return tmp_path / "features.npy"


def test_a_page_from_features(files: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("tree", files, "--data", photos, "--levels", "12", "5", "3")
    assert run_line(*line) == 0
    shown = capsys.readouterr()
    page = files.parent / "features_tree"
    assert f"Page of 60 images written to {page}. Open {(page / 'index.html').as_uri()}" in shown.out
    assert "1 of the 61 images" in shown.err
    assert sorted(file.name for file in page.iterdir()) == ["images", "index.html"]
    before = (page / "index.html").read_bytes()
    assert run_line(*line) == 0  # a page replaces a page, and is the same each time
    assert (page / "index.html").read_bytes() == before
    assert sorted(file.name for file in files.parent.iterdir()) == ["features.npy", "features_tree"]


def test_cluster_writes_a_page_of_images(
    files: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("cluster", files, "--levels", "12", "3", "--out", tmp_path / "tree.safetensors", "--images", photos)
    assert run_line(*line) == 0
    assert f"Page of 60 images written to {tmp_path / 'tree_page'}" in capsys.readouterr().out
    assert (tmp_path / "tree_page" / "index.html").is_file()
    arrays = {"features": np.load(files)[:, :3], "z0": np.load(files)}
    np.savez(tmp_path / "z.npz", **arrays)
    assert run_line("cluster", tmp_path / "z.npz", "--levels", "12", "3", "--out", tmp_path / "z.safetensors") == 0
    found = [PrototypeTree.load(tmp_path / f"{name}.safetensors") for name in ("tree", "z")]
    assert torch.equal(found[0].leaves, found[1].leaves)


def test_cluster_leaves_out_what_could_not_be_read(
    files: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tree has a leaf per readable row and none for the others; hirl tree takes it."""
    rows, readable = np.load(files), np.ones(61, dtype=bool)
    readable[[4, 17]] = False
    rows[~readable] = np.nan
    np.savez(tmp_path / "z.npz", features=rows, readable=readable)
    out = tmp_path / "tree.safetensors"
    line = ("cluster", tmp_path / "z.npz", "--levels", "12", "3", "--out", out)
    assert run_line(*line, "--images", photos) == 0
    shown = capsys.readouterr()
    assert "2 of the 61 images of" in shown.err
    assert "Wrote the tree of 59 images" in shown.out
    assert "Page of 59 images" in shown.out
    np.save(tmp_path / "readable.npy", rows[readable])
    kept = tmp_path / "kept.safetensors"
    assert run_line("cluster", tmp_path / "readable.npy", "--levels", "12", "3", "--out", kept) == 0
    found, expected = PrototypeTree.load(out), PrototypeTree.load(kept)
    assert torch.equal(found.leaves[torch.from_numpy(readable)], expected.leaves)
    assert found.leaves[[4, 17]].tolist() == [-1, -1]
    assert torch.equal(found.prototypes[0], expected.prototypes[0])
    np.savez(tmp_path / "z.npz", features=rows, readable=np.zeros(61, dtype=bool))
    assert run_line(*line, "--overwrite") == 2
    assert "none of the 61 images of" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["tree", "tsne", "sample"])
def test_a_tree_alone_is_recognised(
    command: str, collection: Collection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tree.safetensors"
    collection.tree.save(file)
    assert run_line(command, file) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert (
        f"is a tree, but must be features, a run or images: use hirl tree features.npy --data IMAGES --tree {file}"
        in (sentence)
    )


def test_cluster_counts_images_before_the_work(
    files: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(files, np.load(files)[:40])
    out = tmp_path / "tree.safetensors"
    assert run_line("cluster", files, "--levels", "12", "3", "--out", out, "--images", photos) == 2
    assert "has 40 rows, but" in capsys.readouterr().err
    assert not out.exists()


def test_the_page_holds_the_runs_leaves(runs: dict[str, Run]) -> None:
    folder = runs["hirl"].folder
    assert run_line("tree", folder, "--device", "cpu") == 0
    data = page_data(folder / "tree")
    assert data["tree"] == tree_id(runs["hirl"].tree)
    assert data["levels"] == [24, 6]
    assert data["link"] is None  # images of an array have no files
    assert len(data["files"]) == 144


def test_text(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_line("tree", runs["hirl"].folder, "--text", "--device", "cpu") == 0
    shown = capsys.readouterr().out
    assert "all 144 images" in shown
    assert "144 images, 2 levels" in shown
    assert "leaves" in shown
    assert not (runs["hirl"].folder / "tree").exists()


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figures(kind: str, files: Path, photos: Path, collection: Collection, tmp_path: Path) -> None:
    top = int(collection.tree.sizes(2).argmax())
    names = {"tree": tree_id(collection.tree), "names": {f"2-{top}": "$x$ <b> 猫"}}
    (tmp_path / "names.json").write_text(json.dumps(names))
    out = tmp_path / f"figure.{kind}"
    line = ("tree", files, "--data", photos, "--levels", "12", "5", "3", "--figure", out, "--node", f"2-{top}")
    assert run_line(*line, "--names", tmp_path / "names.json") == 0
    written = out.read_bytes()
    assert written.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])
    assert run_line(*line, "--names", tmp_path / "names.json") == 0
    assert out.read_bytes() == written
    assert run_line(*line[:-2]) == 0  # from the top of the tree


def test_search(runs: dict[str, Run], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs["hirl"].folder
    query = next(photos.glob("*/18.png"))
    line = ("search", folder, query, "--data", photos, "--device", "cpu", "--count", "5")
    assert run_line(*line) == 0
    found = json.loads((folder / "search" / "search.json").read_text())
    assert [level["level"] for level in found["levels"]] == [0, 1, 2]
    assert page_data(folder / "search")["facts"][0] == f"among 60 images of {photos}"
    for level in found["levels"]:
        cosines = [image["cosine"] for image in level["images"]]
        assert len(cosines) == 5
        assert cosines == sorted(cosines, reverse=True)
        files = [image["file"] for image in level["images"]]
        assert str(query) not in files  # itself is no find
        assert not any("damaged" in file for file in files)
    shutil.copy(query, tmp_path / "elsewhere.png")
    assert run_line("search", folder, tmp_path / "elsewhere.png", *line[3:], "--level", "2") == 0
    (level,) = json.loads((folder / "search" / "search.json").read_text())["levels"]
    assert level["images"][0]["file"] == str(query)
    assert level["images"][0]["cosine"] == pytest.approx(1, abs=1e-4)
    capsys.readouterr()
    (tmp_path / "text.jpg").write_text("no image")
    for wrong, sentence in (
        ((tmp_path / "none.jpg",), "there is no image"),
        ((tmp_path / "text.jpg",), "cannot be searched for: it is not an image"),
        ((query, "--level", "7"), "there is no level 7: the collection has z0 to z2"),
    ):
        assert run_line("search", folder, *wrong, "--data", photos, "--device", "cpu") == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert sentence in error


def test_duplicates(runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hirl.data import Shapes

    drawn = Shapes(images=144, size=48, cache=False)
    (tmp_path / "drawn").mkdir()
    for number in range(12):
        picture = Image.fromarray(drawn.pixels[12 * number].permute(1, 2, 0).numpy())
        picture.save(tmp_path / "drawn" / f"{number}.png")
    shutil.copy(tmp_path / "drawn" / "3.png", tmp_path / "drawn" / "again.png")
    folder = runs["hirl"].folder
    assert run_line("duplicates", folder, "--data", tmp_path / "drawn", "--device", "cpu") == 0
    assert "1 of 13 images repeat another one (bytes 1, pixels 0, near 0)" in capsys.readouterr().out
    assert (folder / "duplicates" / "drop.txt").read_text() == f"{tmp_path}/drawn/again.png\n"
    rows = list(csv.DictReader((folder / "duplicates" / "groups.csv").open(newline="")))
    assert [(row["group"], row["action"], row["kind"]) for row in rows] == [("0", "keep", ""), ("0", "drop", "bytes")]
    assert json.loads((folder / "duplicates" / "groups.json").read_text())[1]["file"].endswith("again.png")
    (group,) = page_data(folder / "duplicates")["groups"]
    assert group["heading"] == "Group 0"  # as in the lists, and so is the kind
    assert group["captions"] == ["3.png", "bytes · again.png"]
    line = ("duplicates", folder, "--data", tmp_path / "drawn", "--device", "cpu")
    assert run_line(*line) == 0  # the lists are the same
    for file in ("drop.txt", "groups.csv", "groups.json"):
        edited, page = folder / "duplicates" / file, folder / "duplicates" / "index.html"
        content, before = edited.read_bytes(), page.stat().st_mtime_ns
        edited.write_bytes(content + b"mine\n")
        capsys.readouterr()
        assert run_line(*line) == 2
        sentence = capsys.readouterr().err.splitlines()[-1]
        assert f"{str(edited)!r} exists already, with other content" in sentence
        assert "--overwrite" in sentence
        assert edited.read_bytes() == content + b"mine\n"
        assert page.stat().st_mtime_ns == before
        assert run_line(*line, "--overwrite") == 0
        assert edited.read_bytes() == content
    np.save(tmp_path / "features.npy", np.random.default_rng(0).standard_normal((13, 4)).astype(np.float32))
    assert run_line("duplicates", tmp_path / "features.npy", "--data", tmp_path / "drawn") == 2
    assert "has no encoder to measure the threshold with: give it with --threshold" in capsys.readouterr().err


def test_sample(files: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("sample", files, "--data", photos, "--levels", "12", "5", "3", "--size", "6", "--seed", "2")
    assert run_line(*line) == 0
    assert run_line(*line, "--out", tmp_path / "list.csv") == 0
    with (tmp_path / "list.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    listed = [row["file"] for row in rows]
    assert len(set(listed)) == 6
    assert all(Path(file).is_file() for file in listed)
    (default,) = files.parent.glob("sample_6.*")  # .txt, or .csv where a name has a line break
    if default.suffix == ".txt":
        assert os.fsdecode(default.read_bytes()).split("\n")[:-1] == listed
    assert run_line(*line) == 0  # the list is the same
    content = default.read_bytes()
    default.write_bytes(content[:-1] + b" mine\n")
    capsys.readouterr()
    assert run_line(*line) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert f"{str(default)!r} exists already, with other content" in sentence
    assert "--overwrite" in sentence
    assert default.read_bytes() == content[:-1] + b" mine\n"
    assert run_line(*line, "--overwrite") == 0
    assert default.read_bytes() == content
    assert set(rows[0]) == {"file", "row"} | {
        f"{name}_{level}" for name in ("level", "confidence") for level in range(3)
    }
    assert run_line(*line, "--links", tmp_path / "links") == 0
    links = sorted((tmp_path / "links").iterdir())
    assert all(link.is_symlink() for link in links)
    assert [link.resolve() for link in links] == [Path(file).resolve() for file in listed]
    (tmp_path / "photos").mkdir()
    shutil.copy(links[0], tmp_path / "photos" / "mine.png")
    assert run_line(*line, "--links", tmp_path / "links", "--overwrite") == 0
    capsys.readouterr()
    for wrong, sentence in (
        (("--links", tmp_path / "links"), "exists already"),
        (("--links", tmp_path / "photos", "--overwrite"), "such as 'mine.png', but must be empty or hold links alone"),
        (("--out", tmp_path / "list.csv"), "exists already"),
        (("--out", tmp_path / "list.doc"), "but must end in one of .txt, .csv, .json"),
        (("--out", tmp_path / "a.txt", "--links", tmp_path / "b"), "write either a list or a folder"),
        (("--size", "61"), "at most the 60 readable images"),
        (("--out", tmp_path / "none" / "a.txt"), "does not exist"),
    ):
        assert run_line(*line, *wrong) == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert run_line(*line, "--size", "60", "--out", tmp_path / "all.txt") == 2
    assert "has a line break in its name, but must not: write a .csv or .json file" in capsys.readouterr().err
    assert run_line(*line, "--size", "60") == 0
    assert (files.parent / "sample_60.csv").is_file()  # where the default, a .txt file, will not do
    assert run_line(*line, "--size", "60", "--out", tmp_path / "all.json") == 0
    every = json.loads((tmp_path / "all.json").read_text())
    assert all(Path(row["file"]).is_file() for row in every)


def test_maps(files: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.npy"
    np.save(other, np.load(files)[:, ::-1] + 0.1)
    line = ("tsne", files, "--data", photos, "--levels", "12", "5", "3", "--out", tmp_path / "map")
    assert run_line(*line, "--against", other, "--per_class", "15", "--classes", "2", "--colour", "tree-2") == 0
    with (tmp_path / "map" / "points.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert not any(row["file"].endswith("damaged.png") for row in rows)
    assert set(rows[0]) == {"file", "row", "x_0", "y_0", "x_1", "y_1"}
    for name in ("tsne.png", "tsne.svg", "index.html"):
        assert (tmp_path / "map" / name).stat().st_size > 1000
    capsys.readouterr()
    assert run_line(*line, "--colour", "shape") == 2
    assert "colour is 'shape', but must be one of label, label-0, tree, tree-2" in capsys.readouterr().err
    assert run_line(*line, "--level", "3") == 2
    assert "there is no level 3" in capsys.readouterr().err


def test_umap_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from hirl.explore.tsne import place_points

    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ValueError, match=r"pip install umap-learn"):
        place_points(torch.randn(20, 4), algorithm="umap")


def test_mistakes_about_pages(files: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    (tmp_path / "names.json").write_text(json.dumps({"tree": "of another", "names": {}}))
    base = ("tree", files, "--data", photos, "--levels", "12", "5", "3")
    for wrong, sentence in (
        (("--out", tmp_path / "full"), "has other content, but must be empty or hold a page of hirl"),
        (("--out", files), "is a file, but must be a folder to write a page to"),
        (("--out", tmp_path / "none" / "page"), "does not exist"),
        (("--figure", tmp_path / "figure.gif"), "but must end in one of .png, .svg, .pdf"),
        (("--figure", tmp_path / "figure.png", "--node", "7-1"), "node is 7-1, but must be one of 0-0 to 0-11"),
        (
            ("--figure", tmp_path / "figure.png", "--node", "cats"),
            "node is 'cats', but must be a level and a number, such as 2-17",
        ),
        (("--node", "2-0"), "give its file with --figure"),
        (("--names", tmp_path / "names.json"), "but must be of this one"),
        (("--names", files), "is not a JSON file of node names"),
    ):
        assert run_line(*base, *wrong) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("hirl: ")
        assert sentence in error
    assert (tmp_path / "full" / "letter.txt").read_text() == "dear"
    assert run_line("tree", tmp_path / "no_run") == 2
    assert "no_run" in capsys.readouterr().err


def test_levels_without_heads_are_searched_once() -> None:
    same, other = torch.ones(3, 2), torch.zeros(3, 2)
    assert different_levels(SimpleNamespace(z=(same, same.clone(), same))) == [0]  # type: ignore[arg-type]
    assert different_levels(SimpleNamespace(z=(same, other, other.clone()))) == [0, 1, 2]  # type: ignore[arg-type]
