"""Folders of images: labels from folder names, splits, order, cache, hostile names."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from hirl.data.own_folders import GENERATOR
from hirl.data.sources import BadImage, ImageSet, open_images
from hirl.data.sources import scan as scanning
from hirl.data.sources.scan import scan
from hirl.runs.folder import RunFolder


def test_a_file_that_links_to_itself_is_a_bad_image_like_any_other(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "circle.png").symlink_to(tmp_path / "circle.png")
    images = open_images(tmp_path)
    assert len(images) == 2
    with pytest.raises(BadImage, match=r"circle\.png"):
        images.read(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def images_at(root: Path, names: Iterable[str]) -> Path:
    """A small picture at every path, its grey value the place in the list."""
    for number, name in enumerate(names):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        kind = "PNG" if file.suffix.lower() not in (".jpg", ".jpeg") else "JPEG"
        Image.new("RGB", (8, 6), (number, number, number)).save(file, kind)
    return root


def relative(images: ImageSet, root: Path) -> list[str]:
    return [str(Path(images.path(index)).relative_to(root)) for index in range(len(images))]


def test_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    root = images_at(tmp_path / "flat", ["b.png", "a.jpg", "c.JPEG", "a10.png", "a2.png", "Z.png"])
    images = open_images(root)
    assert relative(images, root) == ["Z.png", "a.jpg", "a10.png", "a2.png", "b.png", "c.JPEG"]
    assert images.labels is None
    assert images.label_names == ()
    assert images.pixels is None
    assert images.read(4).shape == (3, 6, 8)
    assert images.read(4).unique().tolist() == [0]
    assert open_images(str(root), channels=1).read(0).shape == (1, 6, 8)


def test_what_hirl_has_written_among_the_images_is_left_out(tmp_path: Path) -> None:
    pages = ["work/tree/images/0.webp", "run/tree/images/0.webp", "page/images/0.webp", "run/sheet.png"]
    root = images_at(tmp_path / "set", ["1.png", "site/images/2.png", "yolo/3.png", *pages])
    run = RunFolder(root / "run")
    for mark in ("work/belongs_to.json", run.config_file, run.about_file, "site/index.html", "yolo/config.yaml"):
        (root / mark).touch()
    (root / "page" / "index.html").write_text(f"<!doctype html>{GENERATOR}")
    expected = {"": ["1.png"], "site/images": ["2.png"], "yolo": ["3.png"]}
    assert scan(root) == expected
    assert scan(root) == expected  # from the cache
    assert scan(root / "page") == {"images": ["0.webp"]}  # which is asked for itself


def test_class_folder_gives_one_level(tmp_path: Path) -> None:
    root = images_at(tmp_path, ["set/dog/1.png", "set/cat/2.png", "set/cat/1.png"]) / "set"
    images = open_images(root)
    assert images.labels is not None
    assert images.labels.dtype == torch.int64
    assert images.labels.tolist() == [[0], [0], [1]]
    assert images.label_names == (("cat", "dog"),)


def test_nested_folders_give_a_label_tree_finest_first(tmp_path: Path) -> None:
    names = ["animal/feline/lion/1.png", "animal/dog/pug/1.png", "plant/tree/oak/1.png", "animal/feline/cat/1.png"]
    images = open_images(images_at(tmp_path / "set", names))
    assert images.label_names == (("pug", "cat", "lion", "oak"), ("dog", "feline", "tree"), ("animal", "plant"))
    assert images.labels is not None
    assert images.labels.tolist() == [[0, 0, 0], [1, 1, 0], [2, 1, 0], [3, 2, 1]]


def test_equal_names_under_different_parents_are_different_classes(tmp_path: Path) -> None:
    images = open_images(images_at(tmp_path / "set", ["a/other/1.png", "b/other/1.png", "b/x/1.png"]))
    assert images.label_names == (("a/other", "b/other", "x"), ("a", "b"))


def test_a_folder_that_ends_early_stands_for_itself_at_finer_levels(tmp_path: Path) -> None:
    names = ["fruit/apple/gala/1.png", "fruit/apple/fuji/1.png", "fruit/kiwi/1.png", "leek/1.png"]
    images = open_images(images_at(tmp_path / "set", names))
    assert images.label_names == (
        ("fuji", "gala", "kiwi", "leek"),
        ("apple", "kiwi", "leek"),
        ("fruit", "leek"),
    )
    assert images.labels is not None
    assert images.labels.tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1]]


def test_folders_that_all_share_give_no_level(tmp_path: Path) -> None:
    images = open_images(images_at(tmp_path / "set", ["data/images/a/1.png", "data/images/b/1.png"]))
    assert images.label_names == (("a", "b"),)
    flat = open_images(images_at(tmp_path / "flat", ["images/1.png", "images/2.png"]))
    assert flat.labels is None


def test_images_beside_class_folders_make_it_unlabelled_with_a_word(tmp_path: Path) -> None:
    root = images_at(tmp_path / "set", ["1.png", "a/1.png", "b/1.png"])
    with pytest.warns(
        UserWarning, match=r"images beside its class folders, .* unlabelled: move them into a class folder"
    ):
        assert open_images(root).labels is None
    assert len(open_images(root, labelled=False)) == 3
    with pytest.raises(ValueError, match="labelled=True is not possible"):
        open_images(root, labelled=True)


def test_splits_share_their_classes(tmp_path: Path) -> None:
    root = images_at(tmp_path / "set", ["train/a/1.png", "train/b/1.png", "train/b/2.png", "val/b/1.png"])
    train, val = open_images(root), open_images(root, split="val")
    assert relative(train, root) == ["train/a/1.png", "train/b/1.png", "train/b/2.png"]
    assert relative(val, root) == ["val/b/1.png"]
    assert train.label_names == val.label_names == (("a", "b"),)
    assert val.labels is not None
    assert val.labels.tolist() == [[1]]
    assert val.name.endswith("set/val")
    with pytest.raises(ValueError, match=r"no split 'test': choose one of 'train', 'val'"):
        open_images(root, split="test")


def test_splits_may_be_flat_and_spelled_otherwise(tmp_path: Path) -> None:
    root = images_at(tmp_path / "set", ["Training/1.png", "Test/2.png", "extra/3.png"])
    assert open_images(root).labels is None
    assert relative(open_images(root, split="val"), root) == ["Test/2.png"]
    assert relative(open_images(root, split="extra"), root) == ["extra/3.png"]


def test_an_unlabelled_split_leaves_the_others_their_labels(tmp_path: Path) -> None:
    root = images_at(tmp_path / "set", ["train/a/1.png", "train/b/1.png", "test/b/1.png", "unlabelled/1.png"])
    assert open_images(root).label_names == (("a", "b"),)
    test = open_images(root, split="test")
    assert test.labels is not None
    assert test.labels.tolist() == [[1]]
    assert open_images(root, split="unlabelled").labels is None
    with pytest.raises(ValueError, match="unlabelled has no class folders, so labelled=True is not possible"):
        open_images(root, split="unlabelled", labelled=True)


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    images = open_images(images_at(tmp_path / "set", ["train/1.png", "plane/1.png"]))
    assert images.label_names == (("plane", "train"),)
    with pytest.raises(ValueError, match="split='val' cannot be chosen"):
        open_images(tmp_path / "set", split="val")


def test_hidden_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    names = ["a.png", "._a.png", ".hidden/b.png", "__MACOSX/c.png"]
    root = images_at(tmp_path / "set", names)
    for name in (".DS_Store", "Thumbs.db", "notes.txt", "no_extension"):
        (root / name).write_text("x")
    (root / "folder.png").mkdir()
    os.mkfifo(root / "pipe.png")
    assert relative(open_images(root), root) == ["a.png"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    elsewhere = images_at(tmp_path / "elsewhere", ["1.png"])
    root = images_at(tmp_path / "set", ["a/1.png"])
    (root / "b").symlink_to(elsewhere)
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "2.png").symlink_to(elsewhere / "1.png")
    (root / "a" / "3.png").symlink_to(elsewhere / "gone.png")
    images = open_images(root)
    assert relative(images, root) == ["a/1.png", "a/2.png", "a/3.png", "b/1.png"]
    assert images.label_names == (("a", "b"),)
    with pytest.raises(BadImage, match="No such file"):
        images.read(2)


def test_hostile_names_survive(tmp_path: Path) -> None:
    names = [
        "new\nline\t.png",
        "é 漢\u2028.png",
        os.fsdecode(b"\xff\xfe.png"),
        "-rf.png",
        "[bold]x[red].png",
        "\\n.png",
    ]
    root = images_at(tmp_path / "set", [f"{folder}/{name}" for folder in ("a\nb", "c") for name in names])
    for _ in range(2):  # from the disk, then from the cache
        images = open_images(root)
        assert sorted(Path(images.path(index)).name for index in range(6)) == sorted(names)
        assert {int(images.read(index)[0, 0, 0]) for index in range(12)} == set(range(12))
        assert images.label_names == (("a\\nb", "c"),)
        str(images).encode()


def test_a_set_survives_pickling(tmp_path: Path) -> None:
    root = images_at(tmp_path / "set", [f"{kind}/{number}.png" for kind in "ab" for number in range(300)])
    images = open_images(root)
    data = pickle.dumps(images)
    copy = pickle.loads(data)
    assert relative(copy, root) == relative(images, root)
    assert torch.equal(copy.read(7), images.read(7))
    assert len(data) < 600 * 40


class TestCache:
    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(scanning, "SETTLED_NS", -1)  # as though the folders were old
        return images_at(tmp_path / "set", ["a/1.png", "b/1.png", "b/c/2.png"])

    def listed(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, list[str]], set[str]]:
        """What a scan finds, and which folders it had to list."""
        paths: set[str] = set()
        list_one = scanning._list

        def spy(path: Path, times: scanning.Times, progress: scanning._Progress, *, is_root: bool) -> scanning.Listing:
            paths.add(path.relative_to(root).as_posix())
            return list_one(path, times, progress, is_root=is_root)

        with monkeypatch.context() as patch:
            patch.setattr(scanning, "_list", spy)
            return scan(root), paths

    def test_an_unchanged_folder_is_not_listed_again(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first, listed = self.listed(root, monkeypatch)
        assert listed == {".", "a", "b", "b/c"}
        second, listed = self.listed(root, monkeypatch)
        assert listed == set()
        assert second == first == {"a": ["1.png"], "b": ["1.png"], "b/c": ["2.png"]}

    def test_only_what_changed_is_listed_again(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scan(root)
        images_at(root, ["b/c/3.png"])
        (root / "a" / "1.png").unlink()
        found, listed = self.listed(root, monkeypatch)
        assert listed == {"a", "b/c"}
        assert found == {"b": ["1.png"], "b/c": ["2.png", "3.png"]}
        assert self.listed(root, monkeypatch) == (found, set())

    def test_a_folder_that_changed_just_now_is_listed_again(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scanning, "SETTLED_NS", 3_600_000_000_000)
        scan(root)
        assert self.listed(root, monkeypatch)[1] == {".", "a", "b", "b/c"}

    def test_times_set_back_do_not_deceive(self, root: Path) -> None:
        scan(root)
        before = (root / "a").stat()
        images_at(root, ["a/2.png"])
        os.utime(root / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert scan(root)["a"] == ["1.png", "2.png"]

    def test_a_removed_folder_is_forgotten(self, root: Path) -> None:
        scan(root)
        (root / "b" / "c" / "2.png").unlink()
        (root / "b" / "c").rmdir()
        assert scan(root) == {"a": ["1.png"], "b": ["1.png"]}
        stored = json.loads(next((root.parent / "cache" / "hirl" / "scans").iterdir()).read_text())
        assert set(stored["folders"]) == {"", "a", "b"}

    def test_a_folder_replaced_by_another_is_listed(self, root: Path) -> None:
        scan(root)
        images_at(root.parent, ["other/9.png"])
        (root / "a").rename(root.parent / "old")
        (root.parent / "other").rename(root / "a")
        assert scan(root)["a"] == ["9.png"]

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 1}', "\0" * 50, '{"version": 99}'])
    def test_a_damaged_cache_is_ignored(self, root: Path, content: str) -> None:
        expected = scan(root)
        (memory,) = (root.parent / "cache" / "hirl" / "scans").iterdir()
        memory.write_text(content)
        assert scan(root) == expected

    def test_a_cache_that_cannot_be_written_costs_nothing(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root.parent / "file").write_text("not a folder")
        monkeypatch.setenv("XDG_CACHE_HOME", str(root.parent / "file"))
        assert scan(root) == scan(root)

    def test_a_cache_that_is_read_only_costs_nothing(self, root: Path, read_only: Callable[[Path], None]) -> None:
        read_only(root.parent / "cache")
        assert scan(root) == scan(root)

    def test_a_link_is_followed_when_its_folder_is_back(self, root: Path) -> None:
        (root / "drive").symlink_to(root.parent / "mounted")
        assert "drive" not in scan(root)
        images_at(root.parent, ["mounted/1.png"])
        assert scan(root)["drive"] == ["1.png"]


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_long_scan_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_terminal: bool) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=on_terminal, width=1000)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    root = images_at(tmp_path / "[red]set", ["a/1.png", "a/2.png", "b/1.png"])
    scan(root)
    assert screen.getvalue() == ""
    monkeypatch.setattr(scanning, "_QUIET_SECONDS", 0.0)
    scan(root)
    assert ("[red]set" in screen.getvalue()) == on_terminal


def test_a_file_added_right_after_a_scan_is_listed(tmp_path: Path) -> None:
    root = images_at(tmp_path / "set", ["0.png"])
    for number in range(1, 40):  # faster than the file system's clock ticks
        images_at(root, [f"{number}.png"])
        assert len(scan(root)[""]) == number + 1


@pytest.mark.parametrize(
    "path", ["//{}/outside/s.png", "///{}/outside/s.png", "../outside/s.png", "a/../../outside/s.png"]
)
def test_a_list_of_images_does_not_lead_out_of_the_folder(path: str, tmp_path: Path) -> None:
    images_at(tmp_path, ["outside/s.png", "inside/a/s.png"])
    lists = tmp_path / "inside" / "train_list.txt"
    lists.write_text("/a/s.png 0\n")  # one leading slash is Places365's way to write a path below the folder
    assert open_images(tmp_path / "inside").path(0) == str(tmp_path / "inside" / "a" / "s.png")
    escape = path.format(str(tmp_path).lstrip("/"))
    for text in (f"{escape} 0\n", f"/a/s.png 0\n{escape} 0\n"):
        lists.write_text(text)
        with pytest.raises(ValueError, match="but must be a path below the folder and a class number"):
            open_images(tmp_path / "inside")
