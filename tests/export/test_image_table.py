"""A table of images that pandas reads."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pandas
import pytest

from hirl import Run
from hirl.cli.main import main
from hirl.explore.embed import embed
from hirl.explore.file_lists import write_list

EXAMPLE = Path(__file__).parents[2] / "examples" / "image_table.py"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_row_per_image(suffix: str, runs: dict[str, Run], tmp_path: Path) -> None:
    folder, out = str(runs["hirl"].folder), tmp_path / f"images{suffix}"
    assert main(["sample", folder, "--size", "20"]) == 0
    assert main(["duplicates", folder, "--threshold", "0.999"]) == 0
    assert main(["export", folder, "--to", "table", "--out", str(out)]) == 0
    table = pandas.read_csv(out) if suffix == ".csv" else pandas.read_parquet(out)
    expected = embed(folder, device="cpu", quiet=True)
    assert table["file"].tolist() == expected["image"].tolist()
    assert table["level_1"].tolist() == [f"1-{node}" for node in expected["path"][:, 1]]
    assert (table[["confidence_0", "confidence_1"]] >= 0).all(axis=None)
    assert (table["confidence_1"] >= table["confidence_0"]).all()  # another node is another leaf as well
    assert table["chosen"].sum() == 20
    assert table["keep"].sum() + len((runs["hirl"].folder / "duplicates" / "drop.txt").read_text().splitlines()) == 144


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_a_sample_opens_in_pandas(suffix: str, trained_runs: dict[str, Path], tmp_path: Path) -> None:
    sample = tmp_path / f"sample{suffix}"
    assert main(["sample", str(trained_runs["hirl"]), "--size", "20", "--out", str(sample)]) == 0
    chosen = read(sample)
    assert list(chosen) == ["file", "row", "level_0", "level_1", "confidence_0", "confidence_1"]
    assert len(chosen) == 20


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_list_without_rows_is_a_table_as_well(suffix: str, tmp_path: Path) -> None:
    write_list(tmp_path / f"none{suffix}", [], ("group", "file"))
    assert list(read(tmp_path / f"none{suffix}")) == ["group", "file"]


def read(file: Path) -> pandas.DataFrame:
    return getattr(pandas, f"read_{file.suffix[1:]}")(file)


def test_the_example_opens_the_table(runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = str(runs["hirl"].folder), str(tmp_path / "images.csv")
    assert main(["sample", folder, "--size", "20"]) == 0
    assert main(["export", folder, "--to", "table", "--out", out]) == 0
    capsys.readouterr()
    spec = spec_from_file_location("image_table", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(out, fiftyone=False)
    shown = capsys.readouterr().out
    assert "144 images" in shown
    assert "20 chosen" in shown
    assert example.columns(pandas.read_csv(out))["chosen"]("True") is True


def test_a_tree_file_has_no_images(runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["export", str(runs["hirl"].tree_file), "--to", "table", "--out", str(tmp_path / "images.csv")]
    assert main(line) == 2
    assert "a tree does not know its images" in capsys.readouterr().err
