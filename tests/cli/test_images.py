"""`hirl images` through the command's entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hirl.cli.main import main
from hirl.data import ImageSet, open_images
from hirl.explore import class_sheet
from hirl.explore.class_sheet import _title as class_sheet_title


def test_images_lists_the_classes_of_a_folder(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = photos.parent / "sheet.png"
    assert main(["images", str(photos), "--out", str(sheet)]) == 0
    shown = capsys.readouterr().out
    assert "9 images" in shown
    assert "persian, tabby" in shown
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"
        assert picture.width > 4 * 64
    assert main(["images", str(photos), "--out", str(sheet)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_sheet_shows_and_counts_readable_images(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "cats" / "tabby" / "1.png").write_bytes(b"broken")
    drawn: list[int] = []

    def sheet_of(images: ImageSet, **_options: Any) -> Image.Image:
        drawn.append(len(images))
        return Image.new("RGB", (8, 8))

    monkeypatch.setattr("hirl.explore.class_sheet", sheet_of)
    assert main(["images", str(photos), "--out", str(photos.parent / "sheet.png")]) == 0
    assert drawn == [8]


def test_a_sheet_without_labels_has_no_band_for_names(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(60):
        Image.new("RGB", (20, 20), "red").save(tmp_path / "flat" / f"{number}.png")
    sheet = np.asarray(class_sheet(open_images(tmp_path / "flat")))
    red = (sheet == (255, 0, 0)).all(2)
    assert red.any(0).argmax() == 16  # the margin
    assert class_sheet_title(open_images(tmp_path / "flat"), 48) == "flat: 48 of 60 images"


def test_unread_unreadable_images_are_crossed_out_and_listed(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "cats" / "tabby" / "1.png").write_bytes(b"broken")
    assert main(["images", str(photos), "--unread", "--out", str(photos.parent / "sheet.png")]) == 0
    shown = capsys.readouterr().out
    assert "Unreadable images, crossed out on the sheet: 1" in shown
    assert "tabby/1.png" in shown


def test_unreadable_files_are_not_counted_as_images(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    intact = photos / "cats" / "tabby" / "1.png"
    cut = photos / "cats" / "persian" / "1.png"
    intact.write_bytes(b"broken")
    cut.write_bytes(cut.read_bytes()[:-40])  # its header is sound
    assert main(["images", str(photos)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "7 images" in shown
    assert "7 of 9 files can be read: every one was decoded to its end" in shown
    assert "Unreadable, and not counted above: 2" in shown
    assert "tabby/1.png" in shown
    assert "persian/1.png" in shown
    counts = next(row for row in shown.split("│ 0 │")[1:])
    assert [int(cell) for cell in counts.split("│")[1:4]] == [2, 2, 3]
    assert main(["images", str(photos), "--unread"]) == 0
    shown = capsys.readouterr().out
    assert "9 images" in shown
    assert "Files were counted by their names and not read" in shown


def test_a_warning_is_a_single_line(photos: Path) -> None:
    (photos / "loose.png").write_bytes((photos / "cats" / "tabby" / "1.png").read_bytes())
    command = [sys.executable, "-m", "hirl.cli.main", "images", str(photos)]  # pytest would catch the warning
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    warning, progress = shown.stderr.splitlines()
    assert warning.startswith("hirl: warning: ")
    assert progress.startswith("looking for unreadable images: 10 in ")


MISTAKES = {
    "a missing folder": (["nowhere/"], "neither a path nor the name"),
    "a near miss": (["shape"], "did you mean shapes?"),
    "an empty folder": (["{empty}"], "no image in the folder"),
    "a text file": (["{text}"], "is not a set of images"),
    "an unknown split": (["{photos}", "--split", "val"], "has no splits such as train and val"),
    "a drawn size too small": (["shapes-4"], "from 16 to 512"),
    "no picture's name": (["{photos}", "--out", "sheet.txt"], "must end in one of"),
    "a sheet in no folder": (["{photos}", "--out", "no/sheet.png"], "does not exist"),
    "a data set that is not there": (["cifar10", "--root", "{empty}"], "download"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, expected = MISTAKES[mistake]
    named = {"photos": photos, "empty": tmp_path / "empty", "text": tmp_path / "a.txt"}
    named["empty"].mkdir()
    named["text"].write_text("hello")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)

    code = main(["images", *(argument.format(**named) for argument in arguments)])

    shown = capsys.readouterr()
    assert code == 2, shown.out
    (sentence,) = shown.err.strip().splitlines()
    assert sentence.startswith("hirl: ")
    assert expected in sentence
    assert sorted(tmp_path.rglob("*")) == before
