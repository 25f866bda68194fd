"""Small sets are read into memory once; everything else stays where it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hirl.data import BadImage, Skipped, in_memory, open_images


def folder(path: Path, sizes: list[tuple[int, int]]) -> Path:
    generator = np.random.default_rng(0)
    for number, (width, height) in enumerate(sizes):
        place = path / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return path


def test_small_equal_images_become_one_array(tmp_path: Path) -> None:
    files = open_images(folder(tmp_path, [(20, 16)] * 6))
    held = in_memory(files)
    assert held.pixels is not None
    assert held.pixels.shape == (6, 3, 16, 20)
    assert all(torch.equal(held.read(index), files.read(index)) for index in range(6))
    assert held.labels is not None
    assert files.labels is not None
    assert torch.equal(held.labels, files.labels)
    assert held.label_names == files.label_names
    assert held.path(4) == files.path(4)
    assert in_memory(held) is held


@pytest.mark.parametrize("sizes", [[(20, 16), (20, 16), (16, 20)], [(300, 300)] * 2])
def test_other_sets_stay_as_they_are(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    files = open_images(folder(tmp_path, sizes))
    assert in_memory(files) is files


def test_an_unreadable_image_is_replaced_and_recorded(tmp_path: Path) -> None:
    files = open_images(folder(tmp_path, [(20, 16)] * 6))
    Path(files.path(2)).write_bytes(b"no image")
    skipped = Skipped()
    held = in_memory(files, skipped=skipped)
    assert torch.equal(held.read(2), files.read(3))
    assert [bad.index for bad in skipped] == [2]
    with pytest.raises(BadImage, match=r"4\.png cannot be read"):
        in_memory(files, strict=True)


def test_pictures_are_drawn_at_the_size_in_their_name() -> None:
    assert open_images("shapes-16", split="val").read(0).shape == (3, 16, 16)
    with pytest.raises(ValueError, match="from 16 to 512"):
        open_images("shapes-4")
