"""The `hirl` command through its entry point, as a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from hirl import PrototypeTree, suggest_levels
from hirl.cli.main import COMMANDS, main

from ..forked import Forked


def hirl(*args: str | Path) -> Forked:
    process = Forked("hirl.cli.main", *args)
    process.wait()
    return process


@pytest.fixture
def features(tmp_path: Path) -> Path:
    path = tmp_path / "features.npy"
    np.save(path, np.random.default_rng(0).standard_normal((300, 16), dtype=np.float32))
    return path


def test_help_and_version() -> None:
    for args in ((), ("--help",), ("-h",)):
        shown = hirl(*args)
        assert shown.wait() == 0
        assert "examples:" in shown.output
        assert "hirl cluster features.npy" in shown.output
        assert all(f"  {name} " in shown.output for name in COMMANDS)
    command = [str(Path(sys.executable).parent / "hirl"), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert version.startswith("hirl 0.")
    module = [sys.executable, "-m", "hirl", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, check=True).stdout == version
    assert "--levels" in hirl("cluster", "--help").output


def test_output_that_nobody_reads_to_the_end_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["--help"]) == 141
    assert capsys.readouterr().err == ""


def test_cluster_writes_a_tree_and_shows_its_levels(features: Path, tmp_path: Path) -> None:
    shown = hirl("cluster", features, "--levels", "30", "6", "2", "--out", tmp_path / "tree.safetensors")
    assert shown.wait() == 0, shown.errors
    assert "300 images, 3 levels" in shown.output
    assert "level 0: 30 nodes" in shown.errors
    tree = PrototypeTree.load(tmp_path / "tree.safetensors")
    assert tree.levels == (30, 6, 2)
    assert torch.equal(tree.assign(np.load(features)), tree.leaves)


def test_cluster_passes_all_options_on(features: Path, tmp_path: Path) -> None:
    for number, options in enumerate(([], ["--order", "bottom-up"], ["--order", "bottom-up", "--weighted", "true"])):
        out = tmp_path / f"{number}.safetensors"
        shown = hirl("cluster", features, "--levels", "30", "6", "2", "--out", out, *options)
        assert shown.wait() == 0, shown.errors
    top_down, plain, weighted = (PrototypeTree.load(tmp_path / f"{number}.safetensors") for number in range(3))
    assert (top_down.by_path, plain.by_path, weighted.by_path) == (True, False, False)
    assert torch.equal(plain.leaves, weighted.leaves)
    assert not torch.equal(plain.prototypes[1], weighted.prototypes[1])


def test_cluster_takes_another_builder(features: Path, tmp_path: Path) -> None:
    line = ["cluster", str(features), "--levels", "30,6", "--out", str(tmp_path / "t.safetensors"), "--overwrite"]
    assert main([*line, "--builder", "HierarchicalKMeans", "--builder.iterations", "3"]) == 0
    assert PrototypeTree.load(tmp_path / "t.safetensors").levels == (30, 6)
    assert main([*line, "--builder", "HierarchicalKMeans", "--iterations", "3"]) == 2


def test_cluster_fits_levels_to_the_rows_and_says_so(features: Path, tmp_path: Path) -> None:
    shown = hirl("cluster", features, "--out", tmp_path / "tree.safetensors")
    assert shown.wait() == 0, shown.errors
    assert suggest_levels(300).why in shown.output
    assert PrototypeTree.load(tmp_path / "tree.safetensors").levels == suggest_levels(300)


def test_a_traceback_only_when_asked_for(tmp_path: Path) -> None:
    args = ("cluster", tmp_path / "missing.npy", "--out", tmp_path / "tree.safetensors")
    assert "Traceback" not in hirl(*args).errors
    for debug in (("--debug", *args), (*args, "--debug")):
        shown = hirl(*debug)
        assert "Traceback" in shown.errors
        assert shown.wait() != 0


MISTAKES = {
    "an unknown command": (["clutser"], "there is no command 'clutser': did you mean cluster?"),
    "a command of nothing like": (["sing"], f"there is no command 'sing': choose one of {', '.join(COMMANDS)}"),
    "an unknown option": (["cluster", "{features}", "--out", "{new}", "--lvels", "3"], "did you mean --levels?"),
    "no output": (["cluster", "{features}"], "the option --out is missing"),
    "no features": (["cluster", "--out", "{new}"], "the argument features is missing"),
    "a missing file": (["cluster", "nowhere.npy", "--out", "{new}"], "there is no file 'nowhere.npy'"),
    "a folder": (["cluster", ".", "--out", "{new}"], "there is no file '.'"),
    "no npy file": (
        ["cluster", "{text}", "--out", "{new}"],
        "is not a .npy file of numbers: it is damaged, of another",
    ),
    "an empty file": (["cluster", "{empty}", "--out", "{new}"], "is not a .npy file of numbers"),
    "a truncated file": (["cluster", "{cut}", "--out", "{new}"], "cut.npy"),
    "pickled objects": (["cluster", "{objects}", "--out", "{new}"], "or holds objects, which are not read"),
    "several arrays": (["cluster", "{npz}", "--out", "{new}"], "holds arr_0, arr_1, but neither features nor z0"),
    "a vector": (["cluster", "{vector}", "--out", "{new}"], "is of shape (300,), but must be (N, D)"),
    "whole numbers": (["cluster", "{integers}", "--levels", "3", "--out", "{new}"], "float type"),
    "a NaN": (["cluster", "{nan}", "--levels", "3", "--out", "{new}"], "row 5 of features is not finite"),
    "levels that grow": (["cluster", "{features}", "--levels", "3", "30", "--out", "{new}"], "must decrease"),
    "too many clusters": (["cluster", "{features}", "--levels", "301", "--out", "{new}"], "only 300 rows"),
    "a level of zero": (
        ["cluster", "{features}", "--levels", "0", "--out", "{new}"],
        "--levels is 0, but must be a list of whole numbers of at least 1",
    ),
    "a level in words": (
        ["cluster", "{features}", "--levels", "many", "--out", "{new}"],
        "--levels is many, but",
    ),
    "a level with colons": (
        ["cluster", "{features}", "--levels", "30:10", "--out", "{new}"],
        "--levels is 30:10, but must be a list",
    ),
    "a negative seed": (["cluster", "{features}", "--seed", "-1", "--out", "{new}"], "a whole number of at least 0"),
    "no iterations": (["cluster", "{features}", "--iterations", "0", "--out", "{new}"], "iterations"),
    "a tolerance above 1": (["cluster", "{features}", "--tolerance", "2", "--out", "{new}"], "tolerance"),
    "an existing file": (["cluster", "{features}", "--out", "{features}"], "exists already"),
    "a missing folder": (["cluster", "{features}", "--out", "no/such/tree"], "does not exist"),
    "a folder as output": (["cluster", "{features}", "--overwrite", "--out", "."], "it is a folder"),
}


def test_an_error_of_the_system_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Sequence[str]) -> None:
        raise PermissionError(13, "Permission denied", "/elsewhere/run")

    monkeypatch.setattr("hirl.cli.main._run", refused)
    assert main(["runs"]) == 2
    assert capsys.readouterr().err == "hirl: cannot read or write '/elsewhere/run': permission denied\n"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str,
    features: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args, expected = MISTAKES[mistake]
    good = np.load(features)
    holed = good.copy()
    holed[5] = np.nan
    arrays = {"nan": holed, "vector": good[:, 0], "integers": good.astype(np.int32)}
    named = {"features": features, "new": tmp_path / "new.safetensors", "npz": tmp_path / "several.npz"}
    for name, array in arrays.items():
        named[name] = tmp_path / f"{name}.npy"
        np.save(named[name], array)
    np.savez(named["npz"], good, good)
    named |= {name: tmp_path / f"{name}.npy" for name in ("text", "empty", "cut", "objects")}
    named["text"].write_text("hello")
    named["empty"].write_bytes(b"")
    named["cut"].write_bytes(features.read_bytes()[:-100])
    np.save(named["objects"], np.array([{"a": 1}], dtype=object), allow_pickle=True)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}

    monkeypatch.chdir(tmp_path)
    assert main([arg.format(**named) for arg in args]) == 2

    errors = capsys.readouterr().err
    sentence = errors.strip().splitlines()
    assert len(sentence) == 1, errors
    assert sentence[0].startswith("hirl: ")
    assert expected in sentence[0]
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
