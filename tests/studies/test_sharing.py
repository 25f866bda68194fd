"""Two processes share the arms of a comparison and of a search: each is trained once, and tables are those of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hirl.studies.arms import next_arms

from ..forked import Forked, wait_for_all
from .test_compare import line_for, room  # noqa: F401 (a fixture)


@pytest.fixture
def tune_line(room: Path) -> list[str]:  # noqa: F811
    line = ["tune", str(room / "train.npz"), "--config", str(room / "tiny.yaml"), "--held_out", "40"]
    return [*line, "--levels", "12,4", "8,2", "--negatives", "3", "--out"]


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.csv") if "time" not in file.name}


def test_two_processes_compare_as_one(room: Path, tmp_path: Path) -> None:  # noqa: F811
    lines = [line_for(room, tmp_path / name, "--seeds", "0", "1") for name in ("alone", "shared", "shared")]
    processes = [Forked("hirl.cli.main", *line) for line in lines]
    wait_for_all(processes)
    assert files(tmp_path / "shared")
    assert files(tmp_path / "shared") == files(tmp_path / "alone")
    trained = [process.output.count("Done. Inspect with") for process in processes]
    assert trained[0] == 4
    assert trained[1] + trained[2] == 4
    assert min(trained) > 0
    assert not list((tmp_path / "shared").glob(".*.claim"))


def test_processes_that_train_together_go_through_finished_arms_as_well(tmp_path: Path) -> None:
    """Those that the first run starts begin with the first arm."""
    for processes, expected in ((1, ["second"]), (2, ["first", "second"])):
        assert list(next_arms(["first", "second"], tmp_path, "first".__eq__, processes=processes)) == expected


def test_two_processes_tune_as_one(tune_line: list[str], tmp_path: Path) -> None:
    processes = [Forked("hirl.cli.main", *tune_line, tmp_path / name) for name in ("alone", "shared", "shared")]
    wait_for_all(processes)
    assert files(tmp_path / "shared")
    assert files(tmp_path / "shared") == files(tmp_path / "alone")
    trained = [process.output.count("Done. Inspect with") for process in processes]
    assert (trained[0], trained[1] + trained[2]) == (2, 2)
