"""Bad images: found at first touch, replaced the same way every time, listed one a line."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hirl.data.sources import BadImage, ImageSet, Skipped, file_images, open_images, read_or_replace


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def jpeg(value: int) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(value).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    """Ten files of which 2, 3, 7 and 9 are bad."""
    root = tmp_path / "set"
    root.mkdir()
    for number in range(10):
        (root / f"{number}.jpg").write_bytes(jpeg(number))
    (root / "2.jpg").write_bytes(b"")
    (root / "3.jpg").write_bytes(jpeg(3)[:-200])
    (root / "7.jpg").write_bytes(b"<html>404</html>")
    (root / "9.jpg").unlink()
    (root / "9.jpg").symlink_to("/dev/zero")
    return open_images(root)


@pytest.mark.parametrize(
    ("index", "reason"), [(2, "empty"), (3, "truncated"), (7, "not an image"), (9, "not a regular file")]
)
def test_a_bad_file_says_where_and_why(images: ImageSet, index: int, reason: str) -> None:
    with pytest.raises(BadImage, match=reason) as caught:
        images.read(index)
    assert caught.value.index == index
    assert caught.value.path == images.path(index)
    assert f"{index}.jpg" in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.index, copy.path, copy.reason) == (index, images.path(index), caught.value.reason)


def test_a_huge_file_is_not_read(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_images, "MAX_BYTES", 100)
    with pytest.raises(BadImage, match="bytes exceed the limit of 100"):
        images.read(0)


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_out_of_range_is_an_error(images: ImageSet, index: int) -> None:
    with pytest.raises(IndexError, match="images 0 to 9"):
        images.read(index)


def test_the_next_readable_image_stands_in_whatever_was_read_before(images: ImageSet) -> None:
    expected = {2: 4, 3: 4, 7: 8, 9: 0}
    rounds: list[tuple[int, ...]] = [tuple(range(10)), (9, 7, 3, 2, 0), (3, 2, 9, 7)]
    for order in rounds:
        skipped = Skipped()
        for index in order:
            image, source = read_or_replace(images, index, skipped=skipped)
            assert source == expected.get(index, index)
            assert torch.equal(image, images.read(source))
        assert [bad.index for bad in skipped] == [2, 3, 7, 9]
        assert len(skipped) == 4
        assert 7 in skipped
        assert 8 not in skipped


def test_strict_makes_the_first_bad_image_an_error(images: ImageSet) -> None:
    skipped = Skipped()
    read_or_replace(images, 2, skipped=skipped)
    with pytest.raises(BadImage, match=r"2\.jpg"):
        read_or_replace(images, 2, skipped=skipped, strict=True)
    assert read_or_replace(images, 1, skipped=skipped, strict=True)[1] == 1


def test_a_set_with_no_readable_image_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for number in range(3):
        (tmp_path / "set" / f"{number}.png").write_bytes(b"")
    images = open_images(tmp_path / "set")
    with pytest.raises(ValueError, match="none of the 3 images"):
        read_or_replace(images, 1, skipped=Skipped())


def test_the_list_has_one_line_an_image(tmp_path: Path) -> None:
    names = [
        "plain.jpg",
        "new\nline.jpg",
        "tab\t\u2028\x85.jpg",
        os.fsdecode(b"\xff.jpg"),
        "back\\nslash.jpg",
        "漢.jpg",
    ]
    skipped = Skipped()
    for index, name in reversed(list(enumerate(names))):
        skipped.add(BadImage(index, f"/photos/{name}", "its first\nreason"))
        skipped.add(BadImage(index, f"/photos/{name}", "a later reason"))
    target = tmp_path / "skipped.txt"
    skipped.write(target)
    lines = target.read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["0", "1", "2", "3", "4", "5"]
    assert all(line.count("\t") == 2 and line.endswith("its first\\nreason") for line in lines)
    assert "new\\nline.jpg" in lines[1]
    assert "\\xff.jpg" in lines[3]
    assert "back\\\\nslash.jpg" in lines[4]
    assert "漢.jpg" in lines[5]
    skipped.write(target)
    assert list(target.parent.iterdir()) == [target]


def test_a_failed_write_leaves_the_old_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "skipped.txt"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk or your quota is full"):
        Skipped().write(target)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"
