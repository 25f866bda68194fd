"""Error messages of `open_images` for sources that it cannot open."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from hirl.data.shapes import Shapes
from hirl.data.sources import open_images
from hirl.data.sources.escape import one_line


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(ValueError, match=r"there is no image in the folder .*set$"):
        open_images(tmp_path / "set")


def test_a_folder_without_an_image(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match="there is no image in the folder"):
        open_images(tmp_path / "set")


@pytest.mark.parametrize("name", ["shapes", "shapes-64", "cifar10", "CIFAR-10"])
def test_an_empty_folder_that_hides_a_data_set(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=rf"no image in the folder {name}, which takes precedence over the data"):
        open_images(name)


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"photos' is neither a path nor the name of a data set"):
        open_images(tmp_path / "photos")
    with pytest.raises(FileNotFoundError, match=r"did you mean cifar10\?$"):
        open_images("cifar11")


def test_a_file_that_is_no_set(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    with pytest.raises(
        ValueError, match=r"one\.png is not a set of images: pass a folder, a \.npz or \.parquet file, or"
    ):
        open_images(tmp_path / "one.png")


def test_the_built_in_pictures_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hirl.data.shapes.Shapes", partial(Shapes, images=96, cache=False))
    train, val, grey = open_images("shapes"), open_images("shapes", split="val"), open_images("shapes", channels=1)
    assert isinstance(train, Shapes)
    assert not torch.equal(train.read(0), val.read(0))
    assert grey.read(0).shape == (1, 32, 32)
    assert grey.labels is not None
    assert torch.equal(grey.labels, train.labels)
    with pytest.raises(FileNotFoundError, match=r"did you mean shapes\?$"):
        open_images("shape")


def test_a_folder_with_lists_of_its_images(tmp_path: Path) -> None:
    """As Places205 comes: the folders are by letter, the classes in the lists."""
    for name in ("a/abbey", "b/beach"):
        (tmp_path / "set" / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4)).save(tmp_path / "set" / "images" / name / f"{number}.png")
    (tmp_path / "set" / "train_places.csv").write_text("a/abbey/0.png 0\na/abbey/1.png 0\nb/beach/0.png 1\n")
    (tmp_path / "set" / "val_places.csv").write_text("a/abbey/2.png 0\nb/beach/2.png 1\n")
    for split, labels in (("train", [0, 0, 1]), ("val", [0, 1])):
        images = open_images(tmp_path / "set", split=split)
        assert images.labels is not None
        assert images.labels.flatten().tolist() == labels
        assert images.label_names == (("a/abbey", "b/beach"),)


def test_a_home_shortcut_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "photos" / "1.png")
    assert len(open_images("~/photos")) == 1


def test_a_name_that_looks_like_a_home_shortcut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~old photos").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "~old photos" / "1.png")
    assert len(open_images("~old photos")) == 1
    with pytest.raises(FileNotFoundError, match="~no user/photos' is neither a path nor"):
        open_images("~no user/photos")


@pytest.mark.parametrize("image", ["1.png", "animal/cat/1.png"])
def test_shards_or_parquet_beside_images_do_not_hide_them(image: str, tmp_path: Path) -> None:
    for name in ("backup.tar", "table.parquet"):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_bytes(b"x")
    (tmp_path / "set" / image).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "set" / image)
    assert len(open_images(tmp_path / "set")) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain name.jpg", "plain name.jpg"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\\n", "\\\\n"),
        (os.fsdecode(b"\xff\x80"), "\\xff\\x80"),
        ("\u2028\x85", "\\u2028\\x85"),
        ("\ud800", "\\ud800"),
        ("é漢😀", "é漢😀"),
    ],
)
def test_names_become_one_printable_line(text: str, expected: str) -> None:
    assert one_line(text) == expected
    assert expected.encode("utf-8").decode().isprintable()
