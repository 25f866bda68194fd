"""A table of images that pandas reads."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

from hirl import Run
from hirl.cli.main import main
from hirl.explore.embed import embed


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


def test_a_tree_file_has_no_images(runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["export", str(runs["hirl"].tree_file), "--to", "table", "--out", str(tmp_path / "images.csv")]
    assert main(line) == 2
    assert "a tree file does not know its images" in capsys.readouterr().err
