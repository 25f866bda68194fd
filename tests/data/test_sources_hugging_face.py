"""Objects and folders of the library datasets."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from hirl.data.sources import BadImage, open_images


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache" / "datasets")
    datasets.disable_progress_bars()


PICTURES = np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3), dtype=np.uint8)


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PICTURES[number]).save(file, "PNG")
    return file.getvalue()


def same(image: torch.Tensor, number: int) -> bool:
    return torch.equal(image, torch.from_numpy(PICTURES[number]).permute(2, 0, 1))


def dataset(count: int = 4) -> Any:
    features = datasets.Features(
        {
            "coarse": datasets.ClassLabel(names=["animal", "plant"]),
            "picture": datasets.Image(),
            "fine": datasets.ClassLabel(names=["cat", "dog", "oak"]),
            "note": datasets.Value("string"),
        }
    )
    rows = {
        "coarse": [0, 0, 1, 0][:count],
        "picture": [{"bytes": png(number), "path": None} for number in range(count)],
        "fine": [0, 1, 2, 1][:count],
        "note": ["x"] * count,
    }
    return datasets.Dataset.from_dict(rows, features=features)


def test_images_and_label_levels_finest_first() -> None:
    images = open_images(dataset().with_format("torch"))
    assert images.label_names == (("cat", "dog", "oak"), ("animal", "plant"))
    assert images.labels is not None
    assert images.labels.tolist() == [[0, 0], [1, 0], [2, 1], [1, 0]]
    assert all(same(images.read(index), index) for index in range(4))
    assert same(pickle.loads(pickle.dumps(images)).read(2), 2)


def test_a_selection_of_rows_keeps_its_order() -> None:
    images = open_images(dataset().select([3, 0]))
    assert len(images) == 2
    assert same(images.read(0), 3)
    assert images.labels is not None
    assert images.labels.tolist() == [[1, 0], [0, 0]]


def test_splits_of_a_dict() -> None:
    both = datasets.DatasetDict({"train": dataset(), "validation": dataset(2)})
    assert len(open_images(both)) == 4
    assert len(open_images(both, split="val")) == 2
    with pytest.raises(ValueError, match="no split 'test': choose one of 'train', 'validation'"):
        open_images(both, split="test")


def test_labels_that_are_kept_back() -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows: dict[str, Any] = {"image": [{"bytes": png(0), "path": None}] * 2}
    for unknown in (-1, None):
        rows["label"] = [unknown, unknown]
        assert open_images(datasets.Dataset.from_dict(rows, features=features)).labels is None
        rows["label"] = [0, unknown]
        with pytest.raises(ValueError, match="labels for some rows and -1 or null for others"):
            open_images(datasets.Dataset.from_dict(rows, features=features))


def test_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(png(0))
    rows = {
        "image": [
            {"bytes": png(0)[:-30], "path": None},
            None,
            {"bytes": None, "path": str(tmp_path / "gone.png")},
            {"bytes": None, "path": str(tmp_path / "0.png")},
        ]
    }
    features = datasets.Features({"image": datasets.Image()})
    images = open_images(datasets.Dataset.from_dict(rows, features=features))
    for index, reason in enumerate(("truncated", "no image", "No such file")):
        with pytest.raises(BadImage, match=reason):
            images.read(index)
    assert same(images.read(3), 0)
    assert images.labels is None


def test_what_cannot_be_a_set_is_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match="no image column among 'x', but must have exactly one"):
        open_images(datasets.Dataset.from_dict({"x": [1, 2]}))
    with pytest.raises(ValueError, match="has no rows"):
        open_images(dataset().select([]))
    with pytest.raises(ValueError, match="IterableDataset, which has no index"):
        open_images(dataset().to_iterable_dataset())


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part.parquet").touch()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs the library datasets, which is not installed: pip install datasets"):
        open_images(tmp_path)


def test_a_saved_folder(tmp_path: Path) -> None:
    dataset().save_to_disk(str(tmp_path / "one"))
    assert same(open_images(tmp_path / "one").read(1), 1)
    datasets.DatasetDict({"train": dataset(), "test": dataset(1)}).save_to_disk(str(tmp_path / "two"))
    assert len(open_images(tmp_path / "two", split="test")) == 1


def test_parquet_folders(tmp_path: Path) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    dataset().to_parquet(str(tmp_path / "set" / "data" / "train-00000-of-00001.parquet"))
    dataset(2).to_parquet(str(tmp_path / "set" / "data" / "test-00000-of-00001.parquet"))
    images = open_images(tmp_path / "set")
    assert len(images) == 4
    assert images.label_names == (("cat", "dog", "oak"), ("animal", "plant"))
    assert same(images.read(3), 3)
    assert len(open_images(tmp_path / "set", split="val")) == 2


def test_parquet_written_by_others(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    rows = {"jpg": [png(0), png(1)], "label": ["dog", "cat"]}
    datasets.Dataset.from_dict(rows).to_pandas().to_parquet(tmp_path / "set" / "part.parquet")
    images = open_images(tmp_path / "set")
    assert same(images.read(1), 1)
    assert images.label_names == (("cat", "dog"),)
    (tmp_path / "set" / "part.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match=r"parquet files in .*set cannot be read"):
        open_images(tmp_path / "set")
