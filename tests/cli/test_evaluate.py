"""`hirl evaluate` through the command's entry point."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from hirl.cli.main import main
from hirl.evals import EVALUATIONS
from hirl.run import Run


def test_tasks_and_their_options(
    runs: dict[str, Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs["hirl"].folder
    monkeypatch.setenv("COLUMNS", "200")
    line = ["evaluate", str(folder), "knn", "tree", "--knn.ks", "3", "12", "--tree.sample=50", "--seed", "2"]
    assert main([*line, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "knn: 48 classes" in shown
    assert "dendrogram purity" in shown
    files = (folder / "results").iterdir()
    stored = {file.stem.split("-")[0]: json.loads(file.read_text())["protocol"] for file in files}
    assert set(stored) == {"knn", "tree"}
    assert stored["knn"]["arguments"]["ks"] == [3, 12]
    assert stored["tree"]["arguments"]["sample"] == 50
    assert stored["knn"]["seed"] == 2


def test_the_tree_is_built_by_the_builder_that_is_named(runs: dict[str, Run]) -> None:
    folder = runs["base"].folder
    line = ["evaluate", str(folder), "tree", "--tree.levels", "24", "6", "--tree.builder.restarts", "2"]
    assert main([*line, "--device", "cpu"]) == 0
    (file,) = (folder / "results").iterdir()
    builder = json.loads(file.read_text())["protocol"]["arguments"]["builder"]
    assert builder["class_path"] == "hirl.hierarchy.builder.HierarchicalKMeans"
    assert builder["init_args"]["restarts"] == 2


def test_an_encoder_by_name(picture_files: Path, tmp_path: Path) -> None:
    line = ["evaluate", "random:resnet10t", "knn", "--data", str(picture_files), "--knn.ks", "5", "--device", "cpu"]
    args = ["--backbone_args", '{"channels": [8, 8, 16, 16]}']
    assert main([*line, *args, "--out", str(tmp_path / "figures")]) == 0
    (file,) = (tmp_path / "figures").iterdir()
    stored = json.loads(file.read_text())
    assert stored["protocol"]["arguments"]["ks"] == [5]
    assert stored["encoder"]["backbone_args"] == {"channels": [8, 8, 16, 16]}


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from hirl.evals import Evaluation, Figure, Kind, Result

@dataclass(frozen=True, kw_only=True)
class Spread(Evaluation):
    name: ClassVar[str] = "spread"
    part: str = "test"

    def run(self, subject):
        return Result({"spread": Figure(float(subject.features(self.part).std()), Kind.SCORE)}, rows=[])

class Knn(Spread):
    name: ClassVar[str] = "knn"

class Nameless(Evaluation):
    def run(self, subject):
        return Result({}, rows=[])

@dataclass(frozen=True, kw_only=True)
class Needing(Nameless):
    name: ClassVar[str] = "needing"
    part: str
"""


def test_an_evaluation_of_ones_own(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_evaluations.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = str(runs["hirl"].folder)
    assert main(["evaluate", folder, "my_evaluations.Spread", "knn", "--knn.ks", "3", "--device", "cpu"]) == 0
    assert "spread" in capsys.readouterr().out
    assert main(["evaluate", folder, "my_evaluations.Knn", "--device", "cpu"]) == 0  # not the one of that name
    assert "spread" in capsys.readouterr().out
    for arguments, expected in (
        (["my_evaluations.Spred"], "there is no evaluation 'my_evaluations.Spred'"),
        (
            ["hirl.methods.DINO"],
            "is not an evaluation, a subclass of hirl.evals.Evaluation with a name: choose from",
        ),
        (["my_evaluations.Nameless"], "is not an evaluation, a subclass of hirl.evals.Evaluation with a name"),
        (["my_evaluations.Needing"], "'my_evaluations.Needing' cannot be made without arguments: "),
        (["my_evaluations.Knn", "--knn.ks", "3"], "--knn.ks is for the task knn, which is not evaluated"),
    ):
        assert main(["evaluate", folder, *arguments]) == 2
        assert expected in capsys.readouterr().err


def test_help_lists_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    shown = capsys.readouterr().out
    assert "by default knn, clustering, tree, linear" in " ".join(shown.split())
    assert "--clustering.restarts" in shown


def tables(path: Path, train: object, test: object) -> Path:
    """A .npz of small pictures with the labels given for each part; None for none."""
    arrays: dict[str, np.ndarray] = {}
    for part, labels in (("train", train), ("val", test)):
        table = np.zeros(60, dtype=np.int64) if labels is None else np.asarray(labels)
        arrays[f"{part}_images"] = np.random.default_rng(len(table)).integers(0, 256, (len(table), 16, 16, 3), np.uint8)
        if labels is not None:
            arrays[f"{part}_labels"] = table
    np.savez(path, allow_pickle=False, **arrays)
    return path


FOUR = np.arange(240) % 4


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wrong")
    named = {"empty": folder / "empty", "unsplit": folder / "unsplit.npz"}
    named["empty"].mkdir()
    two_levels = np.stack([FOUR, FOUR // 2], axis=1)
    for name, train, test in (
        ("good", FOUR, FOUR),
        ("unlabelled", None, None),
        ("untested", FOUR, None),
        ("one", FOUR * 0, FOUR * 0),
        ("less_train", FOUR[FOUR != 2].repeat(2), FOUR),
        ("less_test", FOUR, FOUR[FOUR != 2]),
        ("other", FOUR, FOUR % 3),
        ("levels", FOUR, two_levels),
    ):
        named[name] = tables(folder / f"{name}.npz", train, test)
    np.savez(named["unsplit"], images=np.zeros((9, 16, 16, 3), np.uint8), labels=np.arange(9) % 2)
    named |= {name: folder / f"{name}.pth" for name in ("code", "weights")}
    named["code"].write_bytes(pickle.dumps({"weight": print}))
    torch.save({"weight": torch.ones(3)}, named["weights"])
    return named


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no subject": ([], "the argument subject is missing"),
    "an unknown task": (
        ["{run}", "knn", "nearest"],
        f"there is no evaluation 'nearest': choose from {', '.join(EVALUATIONS)}",
    ),
    "an unknown option of a task": (["{run}", "knn", "--knn.k", "5"], "knn.k"),
    "an unknown option": (["{run}", "knn", "--sead", "5"], "--sead"),
    "neighbours in words": (["{run}", "knn", "--knn.ks", "many"], "knn.ks"),
    "no neighbours": (["{run}", "knn", "--knn.ks", "0"], "each a whole number of at least 1"),
    "no temperature": (["{run}", "knn", "--knn.temperature", "0", "--knn.ks", "5"], "temperature is 0.0, but must be"),
    "no restarts": (["{run}", "clustering", "--clustering.restarts", "0"], "restarts is 0, but must be at least 1"),
    "an unknown part": (["{run}", "clustering", "--clustering.part", "middle"], "clustering.part"),
    "more neighbours than images": (
        ["{run}", "knn", "--knn.ks", "200"],
        "K is 200, but must be at most the number of training images, 144",
    ),
    "more retrieved than images": (["{run}", "tree", "--tree.neighbours", "145"], "at most the 144"),
    "too many leaves": (
        ["{run}", "tree", "--tree.levels", "145"],
        "only 144 rows",
    ),
    "a negative seed": (["{run}", "knn", "--seed", "-1"], "seed is -1, but must be at least 0"),
    "no labels": (["{run}", "knn", "--data", "{unlabelled}"], "has no labels, but this evaluation needs them"),
    "no labels to test on": (["{run}", "clustering", "--data", "{untested}"], "has no labels"),
    "one class": (["{run}", "knn", "--data", "{one}"], "has only one class"),
    "a class missing in train": (["{run}", "knn", "--data", "{less_train}"], "has no image of 1 of its 4 classes"),
    "a class missing in test": (["{run}", "knn", "--data", "{less_test}"], "val has no image of 1 of its 4 classes"),
    "other classes in test": (["{run}", "knn", "--data", "{other}"], "differ at label level 0"),
    "other label levels in test": (["{run}", "knn", "--data", "{levels}"], "has 1 label levels and"),
    "no part to test on": (["{run}", "knn", "--data", "{unsplit}"], "needs separate test images: name them"),
    "a split that is not there": (["{run}", "knn", "--test_split", "holiday"], "has no split 'holiday'"),
    "missing images": (["{run}", "knn", "--data", "nowhere/"], "neither a path nor the name"),
    "an encoder without images": (["random:resnet10t", "knn"], "give a folder or a known name with --data"),
    "an encoder of another size": (
        ["random:swin_tiny_patch4_window7_224", "knn", "--data", "{good}"],
        "16 × 16 pixels",
    ),
    "another size than a run's": (["{run}", "knn", "--image_size", "32"], "was trained with 16"),
    "an unknown file": (["encoder.safetensors", "knn", "--data", "{good}"], "no run folder and no file"),
    "an unknown network": (
        ["resnet5", "knn", "--data", "{good}"],
        "there is no run folder or file 'resnet5' here, and backbone 'resnet5' is not the name of a timm model",
    ),
    "a pickle": (["{code}", "knn", "--backbone", "resnet10t", "--data", "{good}"], "is not a file of plain weights"),
    "weights without a name": (["{weights}", "knn", "--data", "{good}"], "name it with backbone"),
    "weights that do not fit": (["{weights}", "knn", "--backbone", "resnet10t", "--data", "{good}"], "must match"),
    "a folder of no run": (["{empty}", "knn"], "is not a run folder"),
    "a file for a folder": (["{run}", "knn", "--knn.ks", "5", "--out", "{good}"], "it is not a folder"),
    "a method of elsewhere": (["{run}", "tree", "--method", "no.such.Method"], "there is no method"),
    "a device that is not there": (["{run}", "knn", "--device", "abacus"], "abacus"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str,
    wrong_files: dict[str, Path],
    runs: dict[str, Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args, expected = MISTAKES[mistake]
    named = wrong_files | {"run": runs["hirl"].folder}
    before = sorted(file for file in tmp_path.rglob("*") if file.is_file() and file.parent.name != "features")
    monkeypatch.chdir(tmp_path)

    code = main(["evaluate", *(arg.format(**named) for arg in args)])

    shown = capsys.readouterr()
    assert code == 2, shown.out
    sentence = [line for line in shown.err.strip().splitlines() if " in 0 s" not in line]
    assert len(sentence) == 1, shown.err
    assert sentence[0].startswith("hirl: ")
    assert expected in sentence[0]
    after = [file for file in tmp_path.rglob("*") if file.is_file() and file.parent.name != "features"]
    assert sorted(after) == before
