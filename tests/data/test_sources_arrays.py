"""Arrays, .npz files and MNIST-style idx files become sets in memory."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hirl.data.sources import open_images


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def noise(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_every_layout_arrives_as_channels_first(kind: Any) -> None:
    colour = noise(5, 8, 9, 3)
    expected = torch.from_numpy(colour).permute(0, 3, 1, 2)
    for given in (colour, colour.transpose(0, 3, 1, 2)):
        images = open_images(kind(given))
        assert images.pixels is not None
        assert torch.equal(images.pixels, expected)
        assert torch.equal(images.read(4), expected[4])
        assert images.labels is None
    grey = noise(5, 8, 9)
    for given in (grey, grey[..., None], grey[:, None]):
        pixels = open_images(kind(given)).pixels
        assert pixels is not None
        assert torch.equal(pixels, torch.from_numpy(grey)[:, None].expand(5, 3, 8, 9))
        pixels = open_images(kind(given), channels=1).pixels
        assert pixels is not None
        assert torch.equal(pixels, torch.from_numpy(grey)[:, None])


def test_arrays_are_converted_as_files_are() -> None:
    colour = noise(3, 8, 9, 3)
    grey = open_images(colour, channels=1).read(1)
    assert torch.equal(grey[0], torch.from_numpy(np.array(Image.fromarray(colour[1]).convert("L"))))
    clear = noise(3, 8, 9, 4)
    white = Image.new("RGBA", (9, 8), (255, 255, 255, 255))
    over = Image.alpha_composite(white, Image.fromarray(clear[1])).convert("RGB")
    difference = open_images(clear).read(1).permute(1, 2, 0).int() - torch.from_numpy(np.array(over)).int()
    assert difference.abs().max() <= 1  # Pillow rounds twice
    deep = np.array([[[0, 257, 32768, 65535]]], dtype=np.uint16)
    assert open_images(deep).read(0)[0, 0].tolist() == [0, 1, 128, 255]


def test_a_large_set_is_converted_in_pieces() -> None:
    grey = noise(2500, 2, 2)
    pixels = open_images(grey).pixels
    assert pixels is not None
    assert torch.equal(pixels[:, 2], torch.from_numpy(grey))


def test_an_array_that_fits_is_not_copied() -> None:
    pixels = torch.zeros(4, 3, 5, 5, dtype=torch.uint8)
    opened = open_images(pixels).pixels
    assert opened is not None
    assert opened.data_ptr() == pixels.data_ptr()


def test_labels_of_one_or_more_levels() -> None:
    array = noise(4, 5, 5)
    images = open_images((array, [2, 0, 1, 0]))
    assert images.labels is not None
    assert images.labels.dtype == torch.int64
    assert images.labels.tolist() == [[2], [0], [1], [0]]
    assert images.label_names == (("0", "1", "2"),)
    images = open_images((array, torch.tensor([[3, 1], [0, 0], [1, 0], [0, 0]], dtype=torch.int32)))
    assert images.label_names == (("0", "1", "2", "3"), ("0", "1"))
    images = open_images((array, np.array(["dog", "cat", "dog", "emu"])))
    assert images.label_names == (("cat", "dog", "emu"),)
    assert images.labels is not None
    assert images.labels.tolist() == [[1], [0], [1], [2]]
    copy = pickle.loads(pickle.dumps(images))
    assert torch.equal(copy.read(3), images.read(3))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((2, 4, 4), dtype=np.float32), "type float32, but must be uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.int64), "type int64, but must be uint8"),
        (np.zeros((4, 4), dtype=np.uint8), r"shape \(4, 4\), but must have"),
        (np.zeros((2, 5, 6, 6), dtype=np.uint8), r"shape \(2, 5, 6, 6\), but must have"),
        (np.zeros((2, 3, 4, 3), dtype=np.uint8), "in one place"),
        (np.zeros((0, 4, 4), dtype=np.uint8), "but must not be empty"),
        ((np.zeros((2, 4, 4), dtype=np.uint8), [0]), "2 images and 1 labels"),
        ((np.zeros((2, 4, 4), dtype=np.uint8), [0.5, 1.0]), "must be integers or names"),
        ((np.zeros((2, 4, 4), dtype=np.uint8), [0, -1]), "contain -1, but must be at least 0"),
        ((np.zeros((2, 4, 4), dtype=np.uint8), np.zeros((2, 1, 1), dtype=int)), r"must have \(N,\) or \(N, levels\)"),
        ({"images": 1}, "is a dict, but must be a path"),
        (None, "is a NoneType, but must be a path"),
    ],
)
def test_what_cannot_be_a_set_is_one_clear_sentence(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_images(source)
    assert "\n" not in str(caught.value)


def test_channels_are_one_or_three() -> None:
    with pytest.raises(ValueError, match="channels is 4, but must be 3"):
        open_images(noise(2, 4, 4), channels=4)


def test_a_set_passes_through() -> None:
    images = open_images(noise(2, 4, 4))
    assert open_images(images) is images
    with pytest.raises(ValueError, match=r"channels is 1, but must be that of .*, 3"):
        open_images(images, channels=1)
    with pytest.raises(ValueError, match="split='val' cannot be chosen"):
        open_images(images, split="val")


class TestNpz:
    def test_images_and_labels(self, tmp_path: Path) -> None:
        array = noise(4, 5, 5, 3)
        np.savez(tmp_path / "set.npz", images=array, labels=np.array([[1], [0], [2], [0]]), other=np.ones(3))
        images = open_images(tmp_path / "set.npz")
        assert images.labels is not None
        assert images.labels.tolist() == [[1], [0], [2], [0]]
        assert torch.equal(images.read(2), torch.from_numpy(array[2]).permute(2, 0, 1))
        np.savez_compressed(tmp_path / "bare.npz", array)
        assert open_images(tmp_path / "bare.npz").labels is None

    @pytest.mark.parametrize("pattern", ["{}_images {}_labels", "x_{} y_{}"])
    def test_splits(self, tmp_path: Path, pattern: str) -> None:
        arrays: dict[str, np.ndarray] = {}
        for count, part in ((3, "train"), (2, "test")):
            image_key, label_key = pattern.format(part, part).split()
            arrays[image_key], arrays[label_key] = noise(count, 4, 4), np.arange(count)
        np.savez(tmp_path / "set.npz", **arrays)  # type: ignore[arg-type]
        assert len(open_images(tmp_path / "set.npz")) == 3
        assert len(open_images(tmp_path / "set.npz", split="val")) == 2
        with pytest.raises(ValueError, match="no split 'extra': choose one of 'test', 'train'"):
            open_images(tmp_path / "set.npz", split="extra")

    def test_faults_are_named(self, tmp_path: Path) -> None:
        file = tmp_path / "set.npz"
        np.savez(file, weights=noise(3, 4, 4))
        with pytest.raises(ValueError, match="holds 'weights', but its images must be named 'images'"):
            open_images(file)
        np.savez(file, images=noise(3, 4, 4), labels=np.arange(2))
        with pytest.raises(ValueError, match="3 images and 2 labels"):
            open_images(file)
        np.savez(file, images=np.array([{}], dtype=object))
        with pytest.raises(ValueError, match=r"cannot be read as .npz: .*pickle"):
            open_images(file)
        np.savez(file, images=noise(30, 40, 40))
        for content in (file.read_bytes()[:2000], b"text", b""):
            file.write_bytes(content)
            with pytest.raises(ValueError, match=r"cannot be read as .npz"):
                open_images(file)


class TestIdx:
    def write(self, path: Path, array: np.ndarray) -> None:
        head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
        data = head + array.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)

    @pytest.mark.parametrize("ending", ["", ".gz"])
    def test_images_and_labels_of_both_splits(self, tmp_path: Path, ending: str) -> None:
        train, test = noise(6, 4, 5), noise(3, 4, 5)
        self.write(tmp_path / f"train-images-idx3-ubyte{ending}", train)
        self.write(tmp_path / f"train-labels-idx1-ubyte{ending}", np.arange(6) % 3)
        self.write(tmp_path / f"t10k-images-idx3-ubyte{ending}", test)
        images = open_images(tmp_path, channels=1)
        assert torch.equal(images.read(5)[0], torch.from_numpy(train[5]))
        assert images.labels is not None
        assert images.labels.flatten().tolist() == [0, 1, 2, 0, 1, 2]
        held_out = open_images(tmp_path, split="test")
        assert len(held_out) == 3
        assert held_out.labels is None

    def test_faults_are_named(self, tmp_path: Path) -> None:
        file = tmp_path / "train-images-idx3-ubyte"
        self.write(file, noise(6, 4, 5))
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(ValueError, match="announces 120 values"):
            open_images(tmp_path)
        self.write(file, noise(6, 4))
        with pytest.raises(ValueError, match="not an idx file of unsigned bytes with 3 dimension"):
            open_images(tmp_path)
        file.rename(tmp_path / "train-images-idx3-ubyte.gz")
        with pytest.raises(ValueError, match="cannot be read"):
            open_images(tmp_path)
