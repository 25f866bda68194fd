"""torchvision's data sets by name, on small stand-ins in torchvision's own layout."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from hirl.data.sources import open_images
from hirl.data.sources.torchvision_sets import KNOWN, SUPERCLASS_OF, SUPERCLASSES, known_name


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def write_fashion_mnist(root: Path) -> np.ndarray:
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    array = noise(6, 28, 28)
    for part, count in (("train", 6), ("t10k", 4)):
        head = bytes((0, 0, 8, 3)) + struct.pack(">3I", count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + array[:count].tobytes())
        labels = bytes((0, 0, 8, 1)) + struct.pack(">I", count) + bytes(range(count))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return array


def write_cifar100(root: Path) -> np.ndarray:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    array = noise(200, 3, 32, 32)
    entry = {"data": array.reshape(200, -1), "fine_labels": [number % 100 for number in range(200)]}
    for part in ("train", "test"):
        (folder / part).write_bytes(pickle.dumps(entry))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": sorted(SUPERCLASS_OF)}))
    return array


@pytest.fixture
def _any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (datasets.cifar, datasets.stl10):
        monkeypatch.setattr(module, "check_integrity", lambda *_: True)


def test_fashion_mnist_from_a_root(tmp_path: Path) -> None:
    array = write_fashion_mnist(tmp_path / "root")
    images = open_images("fashion_mnist", root=tmp_path / "root", channels=1)
    assert images.name == "fashion_mnist/train"
    assert images.pixels is not None
    assert torch.equal(images.pixels, torch.from_numpy(array)[:, None])
    assert images.labels is not None
    assert images.labels.tolist() == [[number] for number in range(6)]
    assert images.label_names[0][9] == "Ankle boot"
    test = open_images("Fashion-MNIST", root=tmp_path / "root", split="val")
    assert (test.name, len(test)) == ("fashion_mnist/test", 4)
    with pytest.raises(ValueError, match="no split 'extra': choose one of 'test', 'train'"):
        open_images("fashion_mnist", root=tmp_path / "root", split="extra")


def test_its_raw_folder_opens_by_path_too(tmp_path: Path) -> None:
    array = write_fashion_mnist(tmp_path / "root")
    images = open_images(tmp_path / "root" / "FashionMNIST" / "raw", split="test", channels=1)
    assert torch.equal(images.read(3)[0], torch.from_numpy(array[3]))


def test_the_default_root_is_in_the_cache_folder(tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path / "cache" / "hirl" / "datasets")
    assert len(open_images("fashion_mnist")) == 6


@pytest.mark.usefixtures("_any_checksum")
def test_cifar100_has_its_superclasses(tmp_path: Path) -> None:
    array = write_cifar100(tmp_path / "root")
    images = open_images("cifar100", root=tmp_path / "root")
    assert torch.equal(images.read(7), torch.from_numpy(array[7]))
    fine, coarse = images.label_names
    assert len(fine) == 100
    assert coarse == tuple(SUPERCLASSES)
    assert images.labels is not None
    for row in images.labels[:100].tolist():
        assert SUPERCLASS_OF[fine[row[0]]] == coarse[row[1]]
    assert coarse[images.labels[fine.index("willow_tree"), 1]] == "trees"
    assert torch.bincount(images.labels[:, 1]).tolist() == [10] * 20


@pytest.mark.usefixtures("_any_checksum")
def test_the_unlabelled_part_of_stl10(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    array = noise(2, 3, 96, 96)
    (folder / "unlabeled_X.bin").write_bytes(array.tobytes())
    (folder / "class_names.txt").write_text("cat\ndog\n")
    images = open_images("stl10", root=tmp_path, split="unlabeled")
    assert images.labels is None
    assert images.pixels is not None
    assert torch.equal(images.pixels, torch.from_numpy(array).transpose(2, 3))  # stored column by column


def test_sets_of_files_are_read_by_our_decoder(tmp_path: Path) -> None:
    folder = tmp_path / "dtd" / "dtd"
    for number, kind in enumerate(("banded", "dotted")):
        (folder / "images" / kind).mkdir(parents=True)
        picture = Image.new("L", (40, 32), 100 * number)
        picture.save(folder / "images" / kind / f"{kind}_1.jpg")
    (folder / "labels").mkdir()
    (folder / "labels" / "train1.txt").write_text("banded/banded_1.jpg\ndotted/dotted_1.jpg\n")
    images = open_images("dtd", root=tmp_path)
    assert images.label_names == (("banded", "dotted"),)
    assert images.labels is not None
    assert images.labels.tolist() == [[0], [1]]
    assert images.read(1).shape == (3, 32, 40)
    assert images.read(1, shorter=8).shape == (3, 8, 10)
    assert images.path(1).endswith("images/dotted/dotted_1.jpg")


def test_pets_have_species_above_breeds(tmp_path: Path) -> None:
    folder = tmp_path / "oxford-iiit-pet"
    for name in ("images", "annotations"):
        (folder / name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "images" / "Abyssinian_1.jpg")
    (folder / "annotations" / "trainval.txt").write_text("Abyssinian_1 1 1 1\npug_7 2 2 1\n")
    images = open_images("oxford_iiit_pet", root=tmp_path)
    assert images.label_names == (("Abyssinian", "Pug"), ("Cat", "Dog"))
    assert images.labels is not None
    assert images.labels.tolist() == [[0, 0], [1, 1]]


def test_every_known_set_exists_in_torchvision() -> None:
    for name, known in KNOWN.items():
        assert hasattr(datasets, known.class_name)
        assert known_name(name.upper().replace("_", "-")) == name
        assert known_name(known.class_name) == name


def test_nothing_is_downloaded_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def download(_: Any) -> None:
        asked.append(True)
        raise RuntimeError("Error downloading\nfrom everywhere.")

    monkeypatch.setattr(datasets.CIFAR10, "download", download)
    with pytest.raises(FileNotFoundError, match=r"cifar10 is not in .*root: request its download"):
        open_images("cifar10", root=tmp_path / "root")
    assert not (tmp_path / "root").exists()
    assert not asked
    with pytest.raises(OSError, match=r"could not be downloaded to .*root: Error downloading\\nfrom everywhere$"):
        open_images("cifar10", root=tmp_path / "root", download=True)
    assert asked


def test_a_folder_of_that_name_comes_first_unless_a_root_is_given(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "cifar10" / "1.png")
    assert len(open_images("cifar10")) == 1
    with pytest.raises(FileNotFoundError, match="request its download"):
        open_images("cifar10", root=tmp_path)
    with pytest.raises(ValueError, match="'photos' is not the name of a data set: with root= choose one of cifar10"):
        open_images("photos", root=tmp_path)
