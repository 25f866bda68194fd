"""The folder of a page: what stays in it when the page is written again, and the ways from it to the images."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import numpy as np
import pytest

from hirl.data.own_folders import GENERATOR, PAGE, SHEETS
from hirl.explore.page import file_data, page_folder


def write(folder: Path, text: str, *lists: str) -> None:
    with page_folder(folder, "drop.txt") as aside:
        (aside / PAGE).write_text(f"{GENERATOR}{text}")
        (aside / SHEETS).mkdir()
        (aside / SHEETS / f"{text}.webp").touch()
        for name in lists:
            (aside / name).write_text(text)


def test_files_of_the_user_stay_when_a_page_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    write(folder, "first", "drop.txt", "groups.csv")
    (folder / "names.json").write_text("mine")
    (folder / "notes").mkdir()
    (folder / "notes" / "today.txt").write_text("mine")
    write(folder, "second", "groups.csv")
    with pytest.raises(KeyError), page_folder(folder):
        raise KeyError
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(there) == {"index.html", "images/second.webp", "groups.csv", "names.json", "notes/today.txt"}
    assert there["groups.csv"].read_text() == "second"
    assert there["names.json"].read_text() == there["notes/today.txt"].read_text() == "mine"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_page_finds_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one is named by its full path and one is not, and if a link leads to the page."""
    files = [tmp_path / "photos" / "a.png", tmp_path / "photos" / "cats" / "b.png", tmp_path / "here" / "query.png"]
    scratch = tmp_path / "far" / "away" / "runs"
    for file in (*files, scratch / "page" / PAGE):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.chdir(tmp_path / "here")
    Path("runs").symlink_to(scratch)
    for paths in (
        list(map(str, files)),
        ["query.png", str(files[0]), str(files[1])],
        ["../photos/a.png", "../photos/cats/b.png"],
        ["query.png", "../photos/a.png"],
    ):
        data = file_data(paths, Path("runs/page"))
        of = np.frombuffer(base64.b64decode(data["folderOf"]), np.int32)
        names = [
            "/".join(filter(None, (data["folders"][number], name)))
            for number, name in zip(of, data["files"], strict=True)
        ]
        for name, path in zip(names, paths, strict=True):
            assert Path(os.path.normpath(scratch / "page" / data["link"] / name)).samefile(path)
            assert Path(data["root"], name).samefile(path)
    shards = ["set.tar/a.png", str(files[0])]
    assert file_data(shards, Path("runs/page"))["folders"] == ["set.tar", str(files[0].parent)]
