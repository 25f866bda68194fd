"""`hirl embed`: what a run makes of images, in files that others read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from hirl.cli.main import main
from hirl.explore.embed import embed
from hirl.run import Run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for place in ("cats/tabby", "cats/persian", "dogs/poodle"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 18), (number * 80, 90, 120)).save(tmp_path / "photos" / place / f"{number}.png")
    return tmp_path / "photos"


def test_arrays_are_the_runs_own(runs: dict[str, Run], photos: Path) -> None:
    run = runs["hirl"]
    arrays = embed(run, photos, device="cpu", quiet=True)
    names = ["image", "readable", "features", "z0", "z1", "z2", "path", "tree_levels", "tree_parents_0", "labels"]
    assert list(arrays) == [*names, "classes_0", "classes_1"]
    assert arrays["image"][0].endswith("cats/persian/0.png")
    assert arrays["features"].shape == (9, 16)
    assert arrays["z2"].shape == (9, 16)
    tree = run.tree
    leaves = tree.assign(torch.from_numpy(arrays["z0"]))
    assert np.array_equal(arrays["path"], tree.paths[leaves].numpy())
    assert tuple(arrays["tree_levels"]) == tree.levels
    assert np.array_equal(arrays["tree_parents_0"], tree.parents[0].numpy())
    assert arrays["classes_1"][arrays["labels"][0, 1]] == "cats"
    assert "path" not in embed(runs["base"], photos, device="cpu", quiet=True)


def test_the_default_images_are_those_of_the_run(runs: dict[str, Run]) -> None:
    arrays = embed(str(runs["hirl"].folder), device="cpu", quiet=True)
    assert len(arrays["z0"]) == 144
    assert "other" not in arrays


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_files_hold_the_arrays(
    kind: str, runs: dict[str, Run], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"z.{kind}"
    line = ["embed", str(runs["hirl"].folder), "--data", str(photos), "--device", "cpu", "--out", str(out)]
    assert main(line) == 0
    assert "z2 (9, 16)" in capsys.readouterr().out
    expected = embed(runs["hirl"], photos, device="cpu", quiet=True)
    if kind == "npz":
        with np.load(out, allow_pickle=False) as found:
            assert set(found.files) == set(expected)
            assert all(np.array_equal(found[name], array) for name, array in expected.items())
    else:
        table = parquet.read_table(out)
        names = ["image", "readable", "features", "z0", "z1", "z2", "path", "label_0", "label_1"]
        assert table.column_names == names
        for name in ("z1", "path"):
            assert np.array_equal(np.array(table[name].to_pylist(), dtype=expected[name].dtype), expected[name])
        assert table["label_0"].to_pylist()[0] == "persian"
    assert main(line) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*line, "--overwrite"]) == 0


def test_without_pyarrow_one_sentence_says_what_to_install(
    runs: dict[str, Run], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs the library pyarrow, which is not installed"):
        embed(runs["hirl"], photos, out=tmp_path / "z.parquet", quiet=True)


def test_any_encoder_gives_features(runs: dict[str, Run], photos: Path, tmp_path: Path) -> None:
    """A network by name, a file of weights and a run give the same features where they are the same encoder."""
    arrays = embed("random:resnet10t", photos, image_size=32, device="cpu", quiet=True)
    assert list(arrays) == ["image", "readable", "features", "labels", "classes_0", "classes_1"]
    assert arrays["features"].shape == (9, 512)
    run = runs["hirl"]
    of_run = embed(run, photos, device="cpu", quiet=True)["features"]
    of_file = embed(run.encoder_file, photos, device="cpu", quiet=True, out=tmp_path / "z.npz")["features"]
    assert np.array_equal(of_run, of_file)
    with pytest.raises(ValueError, match=r"method is 'x.Y', but must not be given here: only a run has one"):
        embed("random:resnet10t", photos, method="x.Y", quiet=True)


def test_the_encoder_loads_without_hirl(runs: dict[str, Run], photos: Path) -> None:
    """The lines of docs/explore.md, run as they stand but for the paths."""
    text = (Path(__file__).parents[2] / "docs" / "explore.md").read_text(encoding="utf-8")
    (snippet,) = [block.partition("```")[0] for block in text.split("```python\n")[1:] if "create_model" in block]
    assert "hirl" not in snippet
    names: dict[str, Any] = {}
    query = str(photos / "dogs" / "poodle" / "0.png")
    exec(snippet.replace("runs/x", str(runs["hirl"].folder)).replace("query.jpg", query), names)
    assert names["features"].shape == (1, 16)
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(names["encoder"].eval()(images), runs["hirl"].encoder(images))


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no run": (["--out", "z.npz"], "the argument subject is missing"),
    "no output": (["{run}"], "the option --out is missing"),
    "a file of no kind": (["{run}", "--out", "z.txt"], "one of .npz, .parquet"),
    "a folder that is not there": (["{run}", "--out", "no/z.npz"], "does not exist"),
    "a plain encoder without images": (
        ["random:resnet10t", "--out", "z.npz"],
        "does not name its images: give a folder or a known name with --data",
    ),
    "another size than the run's": (
        ["{run}", "--image_size", "9", "--out", "z.npz"],
        "was trained with 16: leave it out",
    ),
    "a run from nowhere": (["runs/nowhere", "--out", "z.npz"], "no run folder and no file"),
    "missing images": (["{run}", "--data", "nowhere/", "--out", "z.npz"], "neither a path nor the name"),
    "a split that is not there": (["{run}", "--split", "holiday", "--out", "z.npz"], "has no split 'holiday'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str,
    runs: dict[str, Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, expected = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["embed", *(text.format(run=runs["hirl"].folder) for text in arguments)]) == 2
    sentence = capsys.readouterr().err.strip().splitlines()
    assert len(sentence) == 1, sentence
    assert sentence[0].startswith("hirl: ")
    assert expected in sentence[0]
    assert sorted(tmp_path.rglob("*")) == before
