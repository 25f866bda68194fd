"""The tree over a folder of images without a run, for other tools: with names, and with what else is known of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from PIL import Image

from hirl.cli.main import main
from hirl.data import Shapes, open_images
from hirl.encoders.backbones import make_backbone
from hirl.encoders.encoder_file import EncoderMetadata, save_encoder
from hirl.explore.collection import open_collection

SMALL: dict[str, Any] = {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16]}
PHOTOS = ("photos", "--encoder", "small.safetensors")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: photos/ with a copy, and an encoder."""
    drawn = Shapes(images=48, size=16, cache=False)
    (tmp_path / "photos").mkdir()
    for number in range(32):
        picture = Image.fromarray(drawn.read(number % 31).permute(1, 2, 0).numpy())
        picture.save(tmp_path / "photos" / f"{number:02d}.png")
    torch.manual_seed(0)
    half = (0.5, 0.5, 0.5)
    network = make_backbone("resnet18", **SMALL)
    save_encoder(tmp_path / "small.safetensors", network, EncoderMetadata("resnet18", SMALL, 16, half, half))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_line(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_tree_with_names_goes_out_in_every_form(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collection = open_collection(PHOTOS[0], encoder=PHOTOS[2], quiet=True)
    levels, root = collection.tree.levels, f"{len(collection.tree.levels) - 1}-0"
    Path("names.json").write_text(json.dumps({"tree": collection.tree_id, "names": {root: "animals"}}))
    (home / "photos" / "05.png").unlink()  # the tree is updated, and keeps its nodes and their names
    named = (*PHOTOS, "--names", "names.json")
    assert run_line("export", *named, "--to", "json", "--out", "tree.json") == 0
    tree = json.loads(Path("tree.json").read_text())
    assert (tree["count"], tree["children"][0]["name"]) == (31, "animals")

    assert run_line("export", *named, "--to", "torch-export", "--levels", "--out", "tree.pt2") == 0
    assert "features, path, confidence written to tree.pt2" in capsys.readouterr().out
    extra = {"hirl.json": ""}
    program = torch.export.load("tree.pt2", extra_files=extra).module()
    about = json.loads(extra["hirl.json"])
    assert [len(level) for level in about["nodes"]] == list(levels)
    assert about["nodes"][-1][0] == "animals"
    images, now = open_images("photos"), open_collection(PHOTOS[0], encoder=PHOTOS[2], quiet=True)
    found = program(torch.stack([images.read(row) for row in range(31)]))
    assert torch.equal(found["path"], now.tree.image_paths)
    torch.testing.assert_close(found["confidence"], now.tree.margins(now.z[0], now.tree.leaves), rtol=0, atol=1e-4)

    assert run_line("sample", *PHOTOS, "--size", "6") == 0
    assert run_line("duplicates", *PHOTOS, "--threshold", "0.999") == 0
    assert run_line("duplicates", *PHOTOS, "--threshold", "0.999", "--out", "copies.parquet") == 0  # without a page
    copies = pandas.read_parquet("copies.parquet")
    assert copies["action"].tolist() == ["keep", "drop"]
    assert copies["file"].tolist() == ["photos/00.png", "photos/31.png"]
    assert copies["kind"][1] == "bytes"
    assert run_line("export", *named, "--to", "table", "--out", "images.parquet") == 0
    table = pandas.read_parquet("images.parquet")
    nodes = [f"{len(levels) - 1}-{node}" for node in now.tree.image_paths[:, -1].tolist()]
    assert table[f"level_{len(levels) - 1}"].tolist() == ["animals" if node == root else node for node in nodes]
    assert set(table[table["chosen"]]["file"]) == set(next(Path("runs").glob("*/sample_6.txt")).read_text().split())
    group = table[table["file"].isin(["photos/00.png", "photos/31.png"])]
    assert group["group"].nunique() == 1
    assert group["keep"].tolist() == [True, False]


def test_mistakes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_collection(PHOTOS[0], encoder=PHOTOS[2], quiet=True)
    (kept,) = (home / "runs").iterdir()
    for line, sentence in (
        ((*PHOTOS, "--to", "onnx", "--out", "x.onnx"), "'photos' is a folder of images, whose tree is exported with"),
        ((*PHOTOS, "--to", "onnx", "--levels", "--image_size", "32", "--out", "x.onnx"), "but must not be given here"),
        ((kept, "--to", "json", "--out", "x.json"), "output for a folder of images, but must be that folder itself"),
        (
            (kept, "--to", "onnx", "--levels", "--out", "x.onnx"),
            "output for a folder of images, but must be that folder itself",
        ),
        (("photo", "--to", "json", "--out", "x.json"), "'photo'"),
    ):
        assert run_line("export", *line) == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not list(home.glob("x.*"))
