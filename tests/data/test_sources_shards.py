"""Tar shards: images by index, wherever the shards are, with the labels beside them."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

from hirl.data.sources import BadImage, ImageSet, open_images, shard_index, shards
from hirl.data.sources.identity import image_identity, is_identified

from .shard_files import write_shard


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (5, 4), value).save(file, "PNG")
    return file.getvalue()


def values(images: ImageSet) -> list[int]:
    return [int(images.read(index)[0, 0, 0]) for index in range(len(images))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five shards of seven images, valued 0 to 34, labelled by their value modulo 3."""
    for shard in range(5):
        members = []
        for value in range(7 * shard, 7 * shard + 7):
            members += [(f"{value:03}.cls", b"%d\n" % (value % 3)), (f"{value:03}.png", png(value))]
            members.append((f"{value:03}.json", b'{"label": 9}'))
        write_shard(tmp_path / "set" / f"{shard:04}.tar", members)
    return tmp_path / "set"


def test_images_come_in_order_with_their_labels(folder: Path) -> None:
    images = open_images(folder)
    assert values(images) == list(range(35))
    assert images.read(20).shape == (3, 4, 5)
    assert images.labels is not None
    assert images.labels[:, 0].tolist() == [value % 3 for value in range(35)]
    assert images.label_names == (("0", "1", "2"),)
    assert images.path(8) == f"{folder}/0001.tar/008.png"
    assert values(pickle.loads(pickle.dumps(images))) == list(range(35))


def test_the_index_is_made_once_per_shard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = shard_index._make_index

    def noted(shard: str) -> shard_index.ShardIndex:
        made.append(shard)
        return make(shard)

    monkeypatch.setattr(shard_index, "_make_index", noted)
    open_images(folder)
    assert sorted(made) == [f"{folder}/{shard:04}.tar" for shard in range(5)]
    made.clear()
    write_shard(folder / "0003.tar", [("x.png", png(99))])
    assert values(open_images(folder)) == [*range(21), 99, *range(28, 35)]
    assert made == [f"{folder}/0003.tar"]


def test_indexes_are_made_if_they_cannot_be_kept(
    folder: Path, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    read_only(tmp_path / "cache")
    assert len(open_images(folder)) == 35


def test_a_shard_may_be_dropped_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when threads read more shards than stay open."""
    images, pread = open_images(folder), os.pread

    def dropped(*place: int) -> bytes:
        shards._opened.cache_clear()
        return pread(*place)

    monkeypatch.setattr(os, "pread", dropped)
    assert values(images) == list(range(35))


def test_a_copy_is_the_same_set_and_other_content_another(folder: Path, tmp_path: Path) -> None:
    identity = image_identity(open_images(folder))
    assert is_identified(identity)
    moved = folder.rename(tmp_path / "moved")
    assert open_images(moved).fingerprint == identity["fingerprint"]
    write_shard(moved / "0000.tar", [("x.png", png(99))])
    assert open_images(moved).fingerprint != identity["fingerprint"]


@pytest.mark.parametrize(
    ("text", "count"),
    [("{}/000{{1..3}}.tar", 21), ("{}/000{{0,4}}.tar", 14), ("{}/*.tar", 35), ("{}/0002.tar", 7), ("file://{}", 35)],
)
def test_shards_by_pattern(folder: Path, text: str, count: int) -> None:
    assert len(open_images(text.format(folder))) == count


def test_shards_behind_a_url(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        for shard in folder.iterdir():
            memory.pipe_file(f"/bucket/train-{shard.name}", shard.read_bytes())
            memory.pipe_file(f"/bucket/val-{shard.name}", shard.read_bytes())
        for text in ("memory://bucket", "memory://bucket/train-{0000..0004}.tar", "memory://bucket/train-*.tar"):
            images = open_images(text)
            assert values(images) == list(range(35))
            assert images.labels is not None
        assert images.path(0) == "memory:///bucket/train-0000.tar/000.png"
        memory.rm_file("/bucket/train-0000.tar")
        with pytest.raises(BadImage, match=r"train-0000\.tar"):
            images.read(0)
    finally:
        memory.rm("/bucket", recursive=True)


def test_splits_by_name_or_folder_share_their_classes(tmp_path: Path) -> None:
    for name, count in (("train-0", 3), ("train-1", 2), ("val-0", 1)):
        members = [(f"{number}.png", png(number)) for number in range(count)]
        members += [(f"{number}.json", json.dumps({"label": name}).encode()) for number in range(count)]
        write_shard(tmp_path / "names" / f"{name}.tar", members)
        write_shard(tmp_path / "folders" / name[:-2] / f"{name}.tar", members)
    for kind in ("names", "folders"):
        for split, labels in ((None, [0, 0, 0, 1, 1]), ("val", [2])):
            images = open_images(tmp_path / kind, split=split)
            assert images.labels is not None
            assert images.labels[:, 0].tolist() == labels
            assert images.label_names == (("train-0", "train-1", "val-0"),)


def test_labels_of_some_images_only_are_no_labels(tmp_path: Path) -> None:
    write_shard(tmp_path / "set.tar", [("0.png", png(0)), ("0.cls", b"1"), ("1.png", png(1)), ("1.txt", b"a caption")])
    assert open_images(tmp_path / "set.tar").labels is None


def test_bad_members_are_named_when_they_are_read(tmp_path: Path) -> None:
    write_shard(tmp_path / "set.tar", [("0.png", png(0)), ("1.png", b""), ("2.png", png(2)[:-20]), ("a/.x.png", b"")])
    images = open_images(tmp_path / "set.tar", channels=1)
    assert images.read(0).shape == (1, 4, 5)
    assert len(images) == 3
    for index, reason in ((1, "empty"), (2, r"set\.tar/2\.png")):
        with pytest.raises(BadImage, match=reason):
            images.read(index)


@pytest.mark.parametrize("end", [4500, 5700, 6300])  # in a header, in the data of an image, in the last header
def test_a_shard_cut_short_is_refused(tmp_path: Path, end: int) -> None:
    noise = np.random.default_rng(0).bytes(900)
    write_shard(tmp_path / "set.tar", [(f"{number}.png", noise) for number in range(8)])  # 1,536 bytes each
    data = (tmp_path / "set.tar").read_bytes()
    (tmp_path / "set.tar").write_bytes(data[:end])
    with pytest.raises(ValueError, match=r"set\.tar is damaged or cut short after \d images \(.*\): copy it again"):
        open_images(tmp_path / "set.tar")


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    write_shard(tmp_path / "set.tar", [(f"{number}.png", png(number)) for number in range(8)])
    data = bytearray((tmp_path / "set.tar").read_bytes())
    data[4 * 1024 + 10] ^= 255
    (tmp_path / "set.tar").write_bytes(data)
    with pytest.raises(ValueError, match=r"set\.tar is damaged or cut short after 4 images"):
        open_images(tmp_path / "set.tar")


@pytest.mark.parametrize("name", ["../outside.png", "/etc/x.png", "a/../../x.png"])
def test_a_member_that_would_escape_is_an_error(tmp_path: Path, name: str) -> None:
    write_shard(tmp_path / "set.tar", [(name, png(0))])
    with pytest.raises(ValueError, match="points outside the archive"):
        open_images(tmp_path / "set.tar")


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "set.tar").write_bytes(b"no tar" * 100)
    with pytest.raises(ValueError, match=r"set\.tar is not a tar file"):
        open_images(tmp_path / "set.tar")
    write_shard(tmp_path / "set.tar", [("notes.txt", b"x")])
    with pytest.raises(ValueError, match="there is no image in the shards of"):
        open_images(tmp_path / "set.tar")
    write_shard(tmp_path / "set.tar.gz", [("0.png", png(0))])
    with pytest.raises(ValueError, match=r"set\.tar\.gz is compressed, .* \(gunzip\)"):
        open_images(tmp_path / "set.tar.gz")
    assert tarfile.is_tarfile(tmp_path / "set.tar.gz")
    with pytest.raises(ValueError, match="neither a path nor leads to any tar shard"):
        open_images(str(tmp_path / "none-*.tar"))
    with pytest.raises(ValueError, match=r"nowhere://x/\{0..3\}\.tar cannot be opened: "):
        open_images("nowhere://x/{0..3}.tar")
