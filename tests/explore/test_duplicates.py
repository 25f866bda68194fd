"""Duplicates: the same bytes, the same pixels, altered copies; and nothing else."""

from __future__ import annotations

import shutil
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance

from hirl import Run
from hirl.cli.main import main
from hirl.data import Shapes
from hirl.data.sources.arrays import ArrayImages
from hirl.explore import copy_threshold, duplicates
from hirl.explore.collection import Collection, open_collection
from hirl.explore.copy_threshold import measure_threshold
from hirl.explore.duplicate_lists import duplicate_gallery, duplicate_rows
from hirl.explore.duplicates import DuplicateGroup, find_duplicates
from hirl.explore.sample import without_copies

COUNT = 30


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Different pictures, some of them with copies, and a damaged file just before a good one."""
    drawn = Shapes(images=144, size=48, cache=False)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(COUNT):
        Image.fromarray(drawn.pixels[4 * number].permute(1, 2, 0).numpy()).save(folder / f"{number:02d}.png")
    shutil.copy(folder / "03.png", folder / "03 copy.png")
    shutil.copy(folder / "03.png", folder / "zz.png")
    with Image.open(folder / "05.png") as image:
        image.save(folder / "05 other file.bmp")
    with Image.open(folder / "08.png") as image:
        image.convert("RGB").save(folder / "08 small.jpg", quality=60)
    with Image.open(folder / "11.png") as image:
        ImageEnhance.Brightness(image).enhance(1.08).save(folder / "11 bright.png")
        image.resize((96, 96), Image.Resampling.LANCZOS).save(folder / "11 large.png")
    (folder / "14 damaged.png").write_bytes((folder / "15.png").read_bytes()[:-40])
    return folder


def names(found: list[DuplicateGroup], paths: list[str]) -> dict[str, list[tuple[str, str]]]:
    def name(image: int) -> str:
        return Path(paths[image]).name

    return {name(group.keep): sorted((name(copy.image), copy.kind) for copy in group.copies) for group in found}


def test_copies_are_found_and_nothing_else(runs: dict[str, Run], pictures: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collection = open_collection(runs["hirl"], pictures, device="cpu", quiet=True)
    threshold = measure_threshold(collection, device="cpu")
    assert 0.5 < threshold < 1
    assert threshold == measure_threshold(collection, device="cpu")
    found = names(find_duplicates(collection, threshold).groups, collection.paths)
    assert found == {
        "03 copy.png": [("03.png", "bytes"), ("zz.png", "bytes")],
        "05 other file.bmp": [("05.png", "pixels")],
        "08.png": [("08 small.jpg", "near")],
        "11 large.png": [("11 bright.png", "near"), ("11.png", "near")],
    }
    assert names(find_duplicates(collection, 1.0).groups, collection.paths).keys() <= found.keys()


def test_copies_are_found_whatever_the_encoder_makes_of_them(tmp_path: Path) -> None:
    """Also those cropped by 5 % at each edge, by features that say nothing; blank images are not taken for copies."""
    drawn = Shapes(images=144, size=64, cache=False)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(COUNT):
        Image.fromarray(drawn.pixels[4 * number].permute(1, 2, 0).numpy()).save(folder / f"{number:02d}.png")
    for number in (4, 9, 21):
        with Image.open(folder / f"{number:02d}.png") as image:
            image.crop((3, 3, 61, 61)).save(folder / f"{number:02d} cropped.png")
    shutil.copy(folder / "13.png", folder / "13 copy.png")
    with Image.open(folder / "13.png") as image:
        image.convert("L").convert("RGB").save(folder / "13 grey.bmp")  # of more bytes, but without the colours
    dice = np.random.default_rng(0)
    for shade in (200, 201):
        faint = dice.integers(shade, shade + 2, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(faint).save(folder / f"faint {shade}.png")
    for name in ("blank", "blank, another file"):
        Image.new("RGB", (64, 64), "white").save(folder / f"{name}.png", compress_level=len(name) % 10)
    features = dice.standard_normal((COUNT + 9, 16)).astype(np.float32)
    features[COUNT + 5] = features[COUNT + 6]  # of the blank ones: by name they stand behind the numbers
    np.save(tmp_path / "features.npy", features)
    collection = open_collection(tmp_path / "features.npy", folder, quiet=True)
    found = names(find_duplicates(collection, 0.99).groups, collection.paths)
    assert found == {
        "04.png": [("04 cropped.png", "near")],
        "09.png": [("09 cropped.png", "near")],
        "13 copy.png": [("13 grey.bmp", "near"), ("13.png", "bytes")],
        "21.png": [("21 cropped.png", "near")],
        "blank.png": [("blank, another file.png", "pixels")],
    }
    groups = find_duplicates(collection, 0.99).groups
    near = [copy for group in groups for copy in group.copies if copy.kind == "near"]
    assert {copy.by for copy in near} == {"details"}
    assert all(copy.details >= 0.98 and copy.cosine < 0.99 for copy in near)
    rows = [row for row in duplicate_rows(collection, groups) if row["kind"] == "near"]
    assert all(row["by"] == "details" and row["details"] >= 0.98 for row in rows)
    captions = [tile.caption for group in duplicate_gallery(collection, groups) for tile in group.tiles]
    assert sum("near, details 0.9" in caption or "near, details 1.0" in caption for caption in captions) == len(near)


def test_details_and_threshold_are_computed_once(
    runs: dict[str, Run], pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> Collection:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return open_collection(runs["hirl"], pictures, device="cpu", quiet=True)

    monkeypatch.setattr(duplicates, "_image_details", counted := Counting(duplicates._image_details))
    monkeypatch.setattr(copy_threshold, "_measured", measured := Counting(copy_threshold._measured))
    kept, how = without_copies(opened())
    before = counted.calls
    assert before > COUNT
    assert measured.calls == 1
    again, _ = without_copies(opened())
    assert again.tolist() == kept.tolist()
    assert (counted.calls, measured.calls) == (before, 1)
    with Image.open(pictures / "20.png") as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(pictures / "20.png")
    without_copies(opened())
    assert counted.calls == before + 1
    assert how == "as hirl duplicates finds them"


def test_paths_to_one_file_are_no_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is dropped: a list of files to delete must not name the only one there is."""
    dice, photos = np.random.default_rng(0), tmp_path / "photos"
    for folder in ("albums", "originals"):
        (photos / folder).mkdir(parents=True)
    for name in ("a", "b"):
        Image.fromarray(dice.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(photos / "originals" / f"{name}.png")
    shutil.copy(photos / "originals" / "b.png", photos / "originals" / "c.png")
    (photos / "originals" / "d.png").hardlink_to(photos / "originals" / "c.png")  # may be deleted
    (photos / "albums" / "a.png").symlink_to("../originals/a.png")
    (photos / "latest").symlink_to("originals")
    features = tmp_path / "features.npy"
    np.save(features, dice.standard_normal((9, 8)).astype(np.float32))
    home = tmp_path / "home"  # where the photos lie is a link as well
    home.symlink_to(photos)
    assert main(["duplicates", str(features), "--data", str(home), "--threshold", "0.999"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 9 images repeat another one (bytes 2" in shown
    assert "5 of them left out: links to the file of another image" in shown
    dropped = (tmp_path / "features_duplicates" / "drop.txt").read_text().splitlines()
    assert dropped == [f"{home}/originals/{name}.png" for name in "cd"]
    collection = open_collection(features, home, quiet=True)
    chosen = [collection.paths[image] for image in without_copies(collection)[0].tolist()]
    assert chosen == [f"{home}/originals/{name}.png" for name in "ab"]


@pytest.mark.parametrize("chunk", [duplicates.CHUNK, 30_000])
def test_many_frames_of_one_camera_need_no_list_of_pairs(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, others = 1000, 3
    rows = F.normalize(
        torch.randn(1 + others, 1, duplicates.DETAIL**2, generator=torch.Generator().manual_seed(0)), dim=2
    )
    details = torch.cat((rows[:1].expand(frames, -1, -1), rows)).expand(-1, len(duplicates.CROPS), -1).half()
    images = ArrayImages(name="frames", pixels=torch.zeros(len(details), 3, 8, 8, dtype=torch.uint8))
    monkeypatch.setattr(duplicates, "kept_details", lambda *_: details)
    monkeypatch.setattr(duplicates, "CHUNK", chunk)
    collection: Any = SimpleNamespace(images=images, features=torch.ones(len(details), 4), cache=None)
    tracemalloc.start()
    (group,) = find_duplicates(collection, None).groups
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (group.keep, [copy.image for copy in group.copies]) == (0, list(range(1, frames + 1)))
    assert most < 5e6


def test_features_that_confuse_images_leave_it_to_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    features = tmp_path / "features.npy"
    (tmp_path / "photos").mkdir()
    dice = np.random.default_rng(0)
    pixels = dice.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for name in ("a.png", "b.bmp"):
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    np.save(features, np.ones((2, 8), np.float32))
    monkeypatch.setattr(duplicates, "MOST_PAIRS", -1)
    monkeypatch.setattr(copy_threshold, "measure_threshold", lambda *_, **__: 0.9)
    line = ["duplicates", str(features), "--data", str(tmp_path / "photos")]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "Copies are found by files and details alone, as the features do not tell images from each other" in shown
    assert "1 of 2 images repeat another one (bytes 0, pixels 1" in shown
    assert main([*line, "--threshold", "0.9"]) == 2  # as asked for, or not at all


class Counting:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def test_mistakes(runs: dict[str, Run], pictures: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collection = open_collection(runs["hirl"], pictures, device="cpu", quiet=True)
    with pytest.raises(ValueError, match=r"threshold is 1.5, but must be a cosine"):
        find_duplicates(collection, 1.5)
