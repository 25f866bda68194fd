"""A run recognises its images: at their old place, elsewhere, and when they have changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from hirl import Run, pretrain
from hirl.cli.main import main
from hirl.data.sources.image_list import ImageList, Listed, find_differences, list_images
from hirl.data.sources.images_in_memory import in_memory
from hirl.data.sources.opening import open_images
from hirl.explore.embed import embed
from hirl.methods import MoCoV2
from hirl.runs.images_file import read_images

OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 20, "accelerator": "cpu", "devices": 1, "knn_every": 0}


def moco() -> MoCoV2:
    small = {"channels": [4, 4, 8, 8], "stem_width": 4}
    return MoCoV2(backbone="resnet10t", backbone_args=small, dim=8, hidden=8, queue_length=40, bn_splits=2)


def make_photos(folder: Path, seed: int, count: int = 40) -> None:
    folder.mkdir(parents=True)
    dice = np.random.default_rng(seed)
    for number in range(count):
        Image.fromarray(dice.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number:02d}.png")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with photos and a run that was given their relative path."""
    project = tmp_path_factory.mktemp("original") / "project"
    make_photos(project / "photos", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        pretrain("photos", moco(), None, out="run", **OPTIONS)
    return project


@pytest.fixture
def project(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the project, moved there while its original place does not exist."""
    moved = tmp_path / "project"
    shutil.copytree(original, moved)
    hidden = original.with_name("hidden")
    original.rename(hidden)
    monkeypatch.chdir(tmp_path)
    yield moved
    hidden.rename(original)


def places(run: Path) -> list[str]:
    return [str(path) for path in embed(run, device="cpu", quiet=True)["image"]]


def test_the_images_are_found_from_another_folder(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_photos(tmp_path / "photos", 1)  # others of the same name
    monkeypatch.chdir(tmp_path)
    assert {str(Path(path).parent) for path in places(original / "run")} == {str(original / "photos")}


def test_images_that_moved_with_their_run_are_found(project: Path, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", 1)
    assert {str(Path(path).parent) for path in places(project / "run")} == {str(project / "photos")}


def test_the_same_images_in_the_current_folder_are_found(project: Path, tmp_path: Path) -> None:
    shutil.move(project / "photos", tmp_path / "photos")
    assert {str(Path(path).parent) for path in places(project / "run")} == {str(tmp_path / "photos")}


def test_other_images_are_never_taken_for_them(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(project / "photos")
    with pytest.raises(ValueError, match=r"are no longer in .*: name them with --data"):
        places(project / "run")
    make_photos(tmp_path / "photos", 1)
    with pytest.raises(ValueError, match=r"are no longer in .*, and those in .* are others: name them with --data"):
        places(project / "run")
    arrays = embed(project / "run", tmp_path / "photos", device="cpu", quiet=True)  # named, they will do
    assert len(arrays["image"]) == 40


def change(photos: Path) -> None:
    """Two added, one removed, and one changed without a change of size."""
    for name in ("x.png", "y.png"):
        shutil.copy(photos / "03.png", photos / name)
    (photos / "04.png").unlink()
    content = bytearray((photos / "05.png").read_bytes())
    content[-20] ^= 1
    (photos / "05.png").write_bytes(content)


@pytest.mark.filterwarnings("default::UserWarning")
def test_changed_images_are_reported_and_a_run_does_not_continue_with_them(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos", 0)
    shutil.copytree(original / "run", tmp_path / "run")
    run = pretrain("photos", moco(), None, out="run", **OPTIONS)  # the same images elsewhere are the same
    assert "is finished" in capsys.readouterr().out
    known = read_images(run)
    assert known is not None
    assert known[0].path == str(tmp_path / "photos")  # where evaluation now looks for them
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    change(tmp_path / "photos")
    with pytest.raises(ValueError, match=r"\(2 added, 1 removed, 1 changed\): restore them, or name another folder"):
        pretrain("photos", moco(), None, out="run", **OPTIONS)
    assert all(file.read_bytes() == content for file, content in before.items())
    for line in (["embed", "run", "--out", "z.npz"], ["evaluate", "run", "clustering"]):
        capsys.readouterr()
        code = main([*line, "--device", "cpu"])
        (warning,) = [line for line in capsys.readouterr().err.splitlines() if "not those that" in line]
        assert "(2 added, 1 removed, 1 changed); name others with --data" in warning
        assert code == (2 if line[0] == "evaluate" else 0)  # without labels


def listed(folder: Path) -> ImageList:
    return list_images(in_memory(open_images(folder)), folder, hashes=True)


def test_a_broken_link_is_listed_by_its_name(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    make_photos(photos, 0, count=6)
    (photos / "03b.png").symlink_to(tmp_path / "nowhere.png")
    before = listed(photos)
    assert [image.name for image in before.images][3:5] == ["03.png", "03b.png"]
    assert find_differences(before, listed(photos)) is None
    (photos / "01.png").unlink()
    assert find_differences(before, listed(photos)) == "1 removed"
    (photos / "03b.png").unlink()
    assert find_differences(before, listed(photos)) == "2 removed"


def test_rows_without_files_are_numbered() -> None:
    three, four = (ImageList(tuple(Listed(str(row)) for row in range(count))) for count in (3, 4))
    assert find_differences(three, four) == "1 added"
    assert find_differences(four, three) == "1 removed"


def test_arrays_are_known_by_their_content(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    run = pretrain(pixels, moco(), None, out=tmp_path / "run", **OPTIONS)
    with pytest.raises(ValueError, match=r"passed as an object \(array\): give them as data"):
        places(run.folder)
    other = pixels.copy()
    other[7, 0, 0, 0] ^= 1
    with pytest.raises(ValueError, match=r"\(1 changed\)"):
        pretrain(other, moco(), None, out=tmp_path / "run", **OPTIONS)
    with pytest.raises(ValueError, match=r"\(1 removed\)"):
        pretrain(pixels[:-1], moco(), None, out=tmp_path / "run", **OPTIONS)
    assert pretrain(torch.from_numpy(pixels), moco(), None, out=tmp_path / "run", **OPTIONS).finished


def test_a_damaged_list_is_remarked_on_and_written_again(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(original)
    run = Run(shutil.copytree(original / "run", tmp_path / "run"))
    content = run.images_file.read_text()
    run.images_file.write_text(content[:-9])
    with pytest.warns(UserWarning, match=r"images\.tsv' is damaged: whether these are the images of the run"):
        assert len(places(run.folder)) == 40
    pretrain("photos", moco(), None, out=run.folder, **OPTIONS)
    assert "images.tsv' is damaged: it has been written again" in capsys.readouterr().out
    assert run.images_file.read_text().split("\n")[1:] == content.split("\n")[1:]


def test_without_the_list_the_number_of_images_is_checked(
    picture_files: Path, runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree has a leaf for each image."""
    run = runs["hirl"]
    run.images_file.unlink()
    monkeypatch.chdir(run.folder.parent)
    with np.load(picture_files) as arrays:
        fewer = {name: arrays[name][:140] for name in arrays}
    np.savez(tmp_path / "fewer.npz", allow_pickle=False, **fewer)
    config = yaml.safe_load(run.config_file.read_text())
    run.config_file.write_text(yaml.safe_dump(config | {"data": str(tmp_path / "fewer.npz")}))
    with pytest.warns(UserWarning, match="was trained on 144 images, but .* has 140"):
        embed(run.folder, device="cpu", quiet=True)
