"""Tar shards: streamed once each, split over readers, in an order of seed and epoch alone."""

from __future__ import annotations

import io
import pickle
import tarfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hirl.data.sources import BadImage, ImageStream, Skipped, StreamedImage, open_images, open_source


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (5, 4), value).save(file, "PNG")
    return file.getvalue()


def write(path: Path, members: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


@pytest.fixture
def stream(tmp_path: Path) -> ImageStream:
    """Five shards of seven images, valued 0 to 34, labelled by their value modulo 3."""
    for shard in range(5):
        members = []
        for value in range(7 * shard, 7 * shard + 7):
            members += [(f"{value:03}.png", png(value)), (f"{value:03}.cls", b"%d\n" % (value % 3))]
            members.append((f"{value:03}.json", b"{}"))
        write(tmp_path / "set" / f"{shard:04}.tar", members)
    opened = open_source(tmp_path / "set")
    assert isinstance(opened, ImageStream)
    return opened


def values(samples: list[StreamedImage]) -> list[int]:
    return [int(sample.image[0, 0, 0]) for sample in samples]


def test_every_image_comes_once_with_its_label(stream: ImageStream) -> None:
    samples = list(stream.read(seed=0, epoch=0))
    assert sorted(values(samples)) == list(range(35))
    for sample in samples:
        value = int(sample.image[0, 0, 0])
        assert sample.image.shape == (3, 4, 5)
        assert sample.label == value % 3
        assert sample.index == (value // 7) * 2**32 + value % 7


def test_the_order_is_a_function_of_seed_and_epoch(stream: ImageStream) -> None:
    first = values(list(stream.read(seed=1, epoch=2, buffer=3)))
    torch.manual_seed(99)
    again = pickle.loads(pickle.dumps(stream))
    assert values(list(again.read(seed=1, epoch=2, buffer=3))) == first
    orders = {tuple(stream.order(seed=seed, epoch=epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) > 15
    assert all(sorted(order) == list(range(5)) for order in orders)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_readers_share_the_shards(stream: ImageStream, parts: int) -> None:
    """Every image from one reader, and each shard's images in the order they have with one reader."""
    alone = values(list(stream.read(seed=3, epoch=1, buffer=4)))
    shared = [values(list(stream.read(seed=3, epoch=1, buffer=4, part=part, parts=parts))) for part in range(parts)]
    together = list(chain.from_iterable(shared))
    assert sorted(together) == list(range(35))
    for shard in range(5):
        expected = [value for value in alone if value // 7 == shard]
        assert [value for value in together if value // 7 == shard] == expected


def test_the_buffer_mixes_within_a_shard(stream: ImageStream) -> None:
    plain = values(list(stream.read(seed=0, epoch=0)))
    mixed = values(list(stream.read(seed=0, epoch=0, buffer=5)))
    assert [value // 7 for value in plain] == [value // 7 for value in mixed]
    assert plain != mixed
    assert sorted(plain) == sorted(mixed)


@pytest.mark.parametrize(("part", "parts"), [(0, 6), (2, 2), (-1, 2)])
def test_too_many_readers_are_an_error(stream: ImageStream, part: int, parts: int) -> None:
    with pytest.raises(ValueError, match=r"reader .* of .* is not possible: .* has 5 shard\(s\)"):
        next(stream.read(seed=0, epoch=0, part=part, parts=parts))


def test_splits_by_name_or_folder(tmp_path: Path) -> None:
    for name, count in (("train-0", 3), ("train-1", 2), ("val-0", 1)):
        members = [(f"{number}.png", png(number)) for number in range(count)]
        write(tmp_path / "names" / f"{name}.tar", members)
        write(tmp_path / "folders" / name[:-2] / f"{name}.tar", members)
    for kind in ("names", "folders"):
        for split, count in ((None, 5), ("val", 1)):
            opened = open_source(tmp_path / kind, split=split)
            assert isinstance(opened, ImageStream)
            samples = list(opened.read(seed=0, epoch=0))
            assert len(samples) == count
            assert samples[0].label is None


@pytest.mark.parametrize("name", ["one.tar", "one.tar.gz", "one.tgz"])
def test_one_shard_alone_and_compressed(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, [("a/b.png", png(7)), ("a/.hidden.png", b""), ("a/c.txt", b"text")])
    opened = open_source(str(tmp_path / name), channels=1)
    assert isinstance(opened, ImageStream)
    (sample,) = opened.read(seed=0, epoch=0)
    assert sample.image.shape == (1, 4, 5)


def test_bad_members_are_skipped_listed_or_raised(tmp_path: Path) -> None:
    members = [("0.png", png(0)), ("1.png", b""), ("2.png", png(2)), ("2.cls", b"two"), ("3.png", png(3)[:-20])]
    write(tmp_path / "set.tar", [*members, ("4.png", png(4))])
    opened = open_source(tmp_path / "set.tar")
    assert isinstance(opened, ImageStream)
    skipped = Skipped()
    assert values(list(opened.read(seed=0, epoch=0, skipped=skipped))) == [0, 4]
    assert [bad.index for bad in skipped] == [1, 2, 3]
    assert [bad.path.rsplit("/", 1)[1] for bad in skipped] == ["1.png", "2.png", "3.png"]
    assert "empty" in next(iter(skipped)).reason
    with pytest.raises(BadImage, match=r"1\.png"):
        list(opened.read(seed=0, epoch=0, strict=True))


def test_a_shard_cut_short_is_reported(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    members = [(f"{number}.png", png(number)) for number in range(3)]
    write(tmp_path / "set.tar", [*members, ("3.bin", draw.bytes(5000)), ("4.png", png(4))])
    data = (tmp_path / "set.tar").read_bytes()
    (tmp_path / "set.tar").write_bytes(data[:6000])
    opened = open_source(tmp_path / "set.tar")
    assert isinstance(opened, ImageStream)
    skipped = Skipped()
    assert len(list(opened.read(seed=0, epoch=0, skipped=skipped))) >= 2
    assert [bad.path for bad in skipped] == [str(tmp_path / "set.tar")]
    assert "cannot be read further" in next(iter(skipped)).reason


@pytest.mark.parametrize("name", ["../outside.png", "/etc/x.png", "a/../../x.png"])
def test_a_member_that_would_escape_is_an_error(tmp_path: Path, name: str) -> None:
    write(tmp_path / "set.tar", [(name, png(0))])
    opened = open_source(tmp_path / "set.tar")
    assert isinstance(opened, ImageStream)
    with pytest.raises(ValueError, match="points outside the archive"):
        list(opened.read(seed=0, epoch=0))


def test_a_stream_has_no_index(stream: ImageStream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a stream without an index"):
        open_images(tmp_path / "set")
    assert open_source(stream) is stream


def test_what_is_no_tar_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "set.tar").write_bytes(b"no tar" * 100)
    with pytest.raises(ValueError, match=r"set\.tar is not a tar file"):
        open_source(tmp_path / "set.tar")
