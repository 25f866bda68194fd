"""Files of features: every kind that is written opens again, and others' files are read or refused in one sentence."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from hirl.cli.main import main
from hirl.data.sources.image_set import LabelNames
from hirl.features.feature_files import Arrays, images_of_paths, read_features, write_features
from hirl.hierarchy.tree import PrototypeTree


def arrays(N: int = 7) -> Arrays:
    """As `hirl embed` makes them, with a class and nodes that no image has."""
    generator = np.random.default_rng(0)
    parents = np.array([1, 0, 1, 0])
    leaves = generator.integers(0, 3, N)
    return {
        "image": np.array([f"photos/{row} é.png" for row in range(N)]),
        "readable": np.arange(N) != 2,
        "features": generator.standard_normal((N, 5)).astype(np.float16),
        "z0": generator.standard_normal((N, 3)).astype(np.float32),
        "path": np.stack([leaves, parents[leaves]], axis=1),
        "tree_levels": np.array([4, 2]),
        "tree_parents_0": parents,
        "labels": np.stack([np.arange(N) % 2, np.zeros(N, dtype=np.int64)], axis=1),
        "classes_0": np.array(["zebra", "ape", "unseen"]),
        "classes_1": np.array(["animal"]),
    }


@pytest.mark.parametrize("name", ["z.npz", "z.parquet", "Z.PARQUET"])
def test_all_that_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    write_features(tmp_path / name, arrays())
    found = read_features(tmp_path / name)
    assert found.keys() == arrays().keys()
    for key, array in arrays().items():
        assert found[key].dtype == array.dtype, key
        assert np.array_equal(found[key], array), key


@pytest.mark.parametrize("name", ["z.npz", "z.parquet"])
def test_a_flipped_bit_is_noticed(name: str, tmp_path: Path) -> None:
    file, wanted, draw = tmp_path / name, arrays(), random.Random(0)
    write_features(file, wanted)
    written = file.read_bytes()
    for _ in range(100):
        content = bytearray(written)
        content[draw.randrange(len(written))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        with suppress(ValueError):
            found = read_features(file)  # the bit was one of the checksum's name
            assert all(np.array_equal(found[key], array) for key, array in wanted.items())


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["z.npz", "z.parquet"])
def test_any_of_them_can_be_clustered(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_features(tmp_path / name, arrays(40))
    out = tmp_path / "tree.safetensors"
    assert main(["cluster", str(tmp_path / name), "--levels", "4", "2", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "Wrote the tree of 39 images" in shown.out
    assert "1 of the 40 images" in shown.err
    assert PrototypeTree.load(out).levels == (4, 2)


def test_a_parquet_file_of_another_program(tmp_path: Path) -> None:
    """It has no metadata of hirl, and lists of any length."""
    columns = {"z0": [[1.0, 2.0], [3.0, 4.0]], "label_0": ["b", "a"], "note": ["x", "y"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "z.parquet")
    found = read_features(tmp_path / "z.parquet")
    assert found["z0"].tolist() == [[1, 2], [3, 4]]
    assert found["classes_0"].tolist() == ["a", "b"]
    assert found["labels"].tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"z0": [[1.0, 2.0], [3.0]]}, "z0 of .* is of lists of several lengths, but must be of one"),
        ({"z0": [[1.0], None]}, "z0 of .* is of lists of several lengths, but must be of one"),
        ({"features": [1.0, 2.0]}, r"features of .* is of shape \(2,\), but must be \(N, D\)"),
        ({"features": [[1], [2]]}, "must be of a float type"),
        ({"x": [1]}, "holds x, but neither features nor z0"),
    ],
)
def test_columns_that_are_no_features(columns: dict[str, list[object]], sentence: str, tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table(columns), tmp_path / "z.parquet")
    with pytest.raises(ValueError, match=sentence):
        read_features(tmp_path / "z.parquet")


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    file = tmp_path / "z.parquet"
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"is not a \.parquet file, or is damaged"):
        read_features(file)
    for about in (b"[1]", b"{", json.dumps({"classes_0": [], "tree_levels": [0]}).encode()):
        table = pyarrow.table({"z0": [[1.0]], "label_0": ["a"], "path": [[0]]}, metadata={b"hirl": about})
        parquet.write_table(table, file)
        with pytest.raises(ValueError, match=r"z\.parquet"):
            read_features(file)


def test_a_name_that_is_not_utf8_does_not_fit_into_parquet(tmp_path: Path) -> None:
    changed = arrays(1) | {"image": np.array(["byte\udcff.png"])}
    write_features(tmp_path / "z.npz", changed)
    assert read_features(tmp_path / "z.npz")["image"][0] == "byte\udcff.png"
    with pytest.raises(ValueError, match=r"has a name that is not UTF-8, which .* cannot hold: name a \.npz file"):
        write_features(tmp_path / "z.parquet", changed)


@pytest.mark.parametrize(
    ("labels", "more", "numbers", "classes"),
    [
        (np.array([1, 0]), {}, [[1], [0]], (("0", "1"),)),
        (np.array([1, 0]), {"classes_0": np.array(["cat", "dog", "eel"])}, [[1], [0]], (("cat", "dog", "eel"),)),
        (np.array(["dog", "cat"]), {"classes_0": np.array(["x", "y"])}, [[1], [0]], (("cat", "dog"),)),
        (np.array([[1, 0], [0, 0]]), {"classes_1": np.array(["pet"])}, [[1, 0], [0, 0]], (("0", "1"), ("pet",))),
    ],
)
def test_labels_of_another_program(
    labels: np.ndarray, more: Arrays, numbers: list[list[int]], classes: LabelNames, tmp_path: Path
) -> None:
    file = tmp_path / "z.npz"
    np.savez(file, allow_pickle=False, image=np.array(["/a.png", "/b.png"]), features=np.eye(2), labels=labels, **more)
    images = images_of_paths(file, read_features(file))
    assert images.labels is not None
    assert images.labels.tolist() == numbers
    assert images.label_names == classes


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"epoch": np.array(3)}, "epoch of .* is a single value, but must be an array"),
        ({"features": np.array(3.0)}, "features of .* is a single value, but must be an array"),
        ({"labels": np.array([0.0, 1.0])}, "are of type float64, but must be integers or names"),
        ({"labels": np.array([0, -1])}, "contain -1, but must be at least 0"),
        (
            {"labels": np.array([0, 4]), "classes_0": np.array(["a"])},
            "classes_0 of .* has length 1, but labels go up to 4",
        ),
    ],
)
def test_arrays_of_another_program_that_do_not_fit(more: Arrays, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "z.npz"
    given = {"image": np.array(["/a.png", "/b.png"]), "features": np.eye(2)} | more
    np.savez(file, allow_pickle=False, **given)
    with pytest.raises(ValueError, match=sentence):
        images_of_paths(file, read_features(file))
